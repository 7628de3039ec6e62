"""Evidence beside logs: tensors, predictions, committed seeds, signatures, statements on re-runs.

Seeds are all fixed before the first run, and revealed one by one. A random secret is hashed
repeatedly. The last hash is published with the first run and commits to all seeds: the link of run
n is the hash whose n-th hash is the commitment, and the seed is derived from the link. Nobody who
knows the links so far can compute the next one (Lamport 1981, "Password authentication with
insecure communication").

Signatures are detached ones by OpenSSH keys. ``ssh-keygen -Y`` makes and verifies them, so that a
key, an agent or a hardware token that its owner has is enough. Keys are listed in a file in the
format ALLOWED SIGNERS of ssh-keygen(1), whose principals are the names of organisations.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import math
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.log.chain import SUMS
from hybridperf.tasks.data import check_data, load
from hybridperf.tasks.schema import build
from hybridperf.untrusted import (
    COUNT_CAP,
    DOCUMENT_CAP_BYTES,
    PREDICTIONS_CAP_BYTES,
    open_bounded,
    parse_object,
    read_bounded,
    read_object,
    reason,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.log.package import Package
    from hybridperf.tasks.task import Task

__all__ = [
    "COMMITTED_SEEDS",
    "RERUN",
    "RESULT",
    "SELF_REPORTED",
    "SIGNERS",
    "Attestation",
    "Signature",
    "Subject",
    "Tensors",
    "Trust",
    "attestation_file",
    "commitment_of",
    "encoded",
    "has_key",
    "is_link",
    "labels_here",
    "link_at",
    "quality_of",
    "read_attestations",
    "read_classes",
    "read_tensors",
    "reveals",
    "seed_of",
    "sign_file",
    "subject_of",
    "tensors_of",
    "verify_file",
]


SELF_REPORTED: Final = "self-reported"  #: the lowest verification level: that of every log


@dataclass(frozen=True, slots=True)
class Trust:
    """The highest verification level of a result, computed from its evidence, never claimed."""

    level: str = SELF_REPORTED
    evidence: str = ""  #: sandbox, key or organisation that the level rests on
    lacks: str = ""  #: the missing requirement of the next level; empty on the highest
    unverified: str = ""  #: stored evidence that this machine cannot verify again, and why

    @property
    def words(self) -> str:
        """Return level and evidence for one cell of a table, the same on every machine."""
        return f"{self.level} ({self.evidence})" if self.evidence else self.level


_LENGTH: Final = struct.Struct("<Q")  # of the header; source: the safetensors format
_METADATA: Final = "__metadata__"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensors:
    """A summary of the tensors of a model, equal exactly if all names and shapes are."""

    count: int
    values: int  #: numbers in all tensors together
    sha256: str  #: of one line per tensor, sorted: its name and its shape, such as 64x3x7x7


def tensors_of(shapes: Mapping[str, Iterable[int]]) -> Tensors:
    """Summarise tensors by name and shape."""
    sizes = {name: tuple(shape) for name, shape in shapes.items()}
    lines = sorted(f"{name} {'x'.join(map(str, shape))}\n" for name, shape in sizes.items())
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Tensors(len(sizes), sum(map(math.prod, sizes.values())), digest)


def read_tensors(paths: Iterable[Path]) -> Tensors:
    """Summarise the tensors in the safetensors files ``paths``, which together hold a model.

    Raises:
        OSError: if a file cannot be opened.
        ValueError: if a file is not in the safetensors format, or repeats a tensor of another.
    """
    shapes: dict[str, Shape] = {}
    for path in paths:
        part = _read_header(path)
        if twice := shapes.keys() & part.keys():
            raise ValueError(f"the tensor {min(twice)[:80]!r} in two files")
        shapes |= part
    return tensors_of(shapes)


def _read_header(path: Path) -> dict[str, Shape]:
    with open_bounded(path, sys.maxsize) as file:
        prefix = file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            raise ValueError("a file shorter than the header of safetensors")
        (length,) = _LENGTH.unpack(prefix)
        if length > DOCUMENT_CAP_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = parse_object(file.read(length).decode())
    return {name: _shape(name, entry) for name, entry in header.items() if name != _METADATA}


def _shape(name: str, entry: object) -> Shape:
    stated = entry.get("shape") if isinstance(entry, dict) else None
    sizes = [whole(size, 0, COUNT_CAP) for size in stated] if isinstance(stated, list) else [None]
    shape = tuple(size for size in sizes if size is not None)
    if len(shape) < len(sizes):
        raise ValueError(f"no shape of the tensor {name[:80]!r}")
    return shape


def read_classes(path: Path) -> NDArray[np.int64]:
    """Read predicted classes from a .npy file of unknown origin; nothing is unpickled.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not an array of integers.
    """
    import numpy as np

    content = io.BytesIO(read_bounded(path, PREDICTIONS_CAP_BYTES))
    try:
        with warnings.catch_warnings(action="error"):  # about headers of Python 2
            classes = np.lib.format.read_array(content, allow_pickle=False)
    except Exception as error:  # of Python's tokenizer, among others
        raise ValueError(f"no array of numbers: {error}") from error
    if classes.dtype.kind not in "iu":
        raise ValueError(f"an array of {classes.dtype}")
    return classes.astype(np.int64)


def encoded(classes: NDArray[np.int64]) -> bytes:
    """Return ``classes`` as a .npy file of the smallest unsigned type; below zero becomes int64."""
    import numpy as np

    least, most = (int(classes.min()), int(classes.max())) if classes.size else (0, 0)
    dtype = np.min_scalar_type(most) if least >= 0 else np.dtype(np.int64)
    file = io.BytesIO()
    np.lib.format.write_array(file, classes.astype(dtype), allow_pickle=False)
    return file.getvalue()


def quality_of(classes: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the share of ``classes`` that equal ``labels``, without negative labels.

    Samples of text have different numbers of labels: negative ones fill an array of them.

    Raises:
        ValueError: if their shapes differ.
    """
    if classes.shape != labels.shape:
        raise ValueError(f"predictions of shape {classes.shape}, not {labels.shape}")
    return float((classes == labels)[labels >= 0].mean())


def labels_here(task: Task, data_sha256: object) -> NDArray[np.int64] | None:
    """Return the labels of the evaluation samples; None if this machine lacks the data.

    ``data_sha256`` is what a manifest says of the data: of a task whose data has editions, another
    one has other labels. They are read once for each task: a result has several runs, and a
    submission several results.
    """
    if task.sha256 not in _LABELS:
        try:
            edition = None if task.data.editions is None else check_data(task.data)
            _LABELS[task.sha256] = edition, load(task.data).evaluation.labels
        except (UserError, ImportError):
            _LABELS[task.sha256] = None
    if (found := _LABELS[task.sha256]) is None:
        return None
    edition, labels = found
    return labels if edition is None or edition == data_sha256 else None


_LABELS: Final[dict[str, tuple[str | None, NDArray[np.int64]] | None]] = {}
#: SHA-256 of the data, where there are editions, and labels; by SHA-256 of the task's file


COMMITTED_SEEDS: Final = 1000  #: seeds that a secret commits to
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SEEDS: Final = 2**31


def commitment_of(secret: str) -> str:
    """Return what is published before the first run: the hash that commits to every seed."""
    return _hashed(secret, COMMITTED_SEEDS)


def link_at(secret: str, position: int) -> str:
    """Return the link of the seed at ``position``, counted from 1.

    Raises:
        ValueError: if ``position`` is not from 1 to `COMMITTED_SEEDS`.
    """
    if not 1 <= position <= COMMITTED_SEEDS:
        raise ValueError(f"a position from 1 to {COMMITTED_SEEDS}, not {position}")
    return _hashed(secret, COMMITTED_SEEDS - position)


def seed_of(link: str) -> int:
    """Return the seed, below 2^31, that follows from ``link``."""
    return int(hashlib.sha256(f"seed {link}".encode()).hexdigest(), 16) % _SEEDS


def reveals(link: str, position: int, commitment: str) -> bool:
    """Return whether ``link`` is the one at ``position`` of those that ``commitment`` fixes."""
    return 1 <= position <= COMMITTED_SEEDS and _hashed(link, position) == commitment


def is_link(value: object) -> bool:
    """Return whether an untrusted ``value`` has the form of a link."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _hashed(text: str, times: int) -> str:
    for _ in range(times):
        text = hashlib.sha256(text.encode()).hexdigest()
    return text


SIGNERS: Final = "allowed_signers"  #: file beside the folders of the organisations
RESULT: Final = "hybridperf-result"  #: namespace of signatures of SHA256SUMS
RERUN: Final = "hybridperf-rerun"  #: namespace of signatures of attestations of re-runs
_TIMEOUT_S: Final = 30
_TOOL: Final = "ssh-keygen"
_MAGIC: Final = b"SSHSIG"
_ARMOUR: Final = re.compile(rb"-----BEGIN SSH SIGNATURE-----([A-Za-z0-9+/=\s]+)-----END")
_KINDS: Final = {  # of keys, in ssh-keygen's words
    "ssh-ed25519": "ED25519",
    "ssh-rsa": "RSA",
    "ecdsa-sha2-nistp256": "ECDSA",
    "ecdsa-sha2-nistp384": "ECDSA",
    "ecdsa-sha2-nistp521": "ECDSA",
    "sk-ssh-ed25519@openssh.com": "ED25519-SK",
    "sk-ecdsa-sha2-nistp256@openssh.com": "ECDSA-SK",
}
_GOOD: Final = re.compile(r'Good "[^"]+" signature for .* with (\S+) key (SHA256:\S+)')


@dataclass(frozen=True, slots=True)
class Signature:
    """The outcome of verifying a signature."""

    good: bool
    problem: str = ""  #: why it is not good, or not verified
    key: str = ""  #: kind and fingerprint of the key
    verified: bool = True  #: else this machine cannot, and the key is only named by the signature


def has_key(signers: Path, org: str) -> bool:
    """Return whether the file ``signers`` lists a key for ``org``; a missing file lists none."""
    return bool(_keys_of(signers, org))


def verify_file(path: Path, signature: Path, signers: Path, org: str, namespace: str) -> Signature:
    """Verify that a key of ``org`` in ``signers`` has signed the file ``path``.

    Where there is no ssh-keygen, a signature that names a key of ``org`` is good but not verified.
    """
    try:
        content = read_bounded(path, DOCUMENT_CAP_BYTES)
        armoured = read_bounded(signature, DOCUMENT_CAP_BYTES)
        keys = read_bounded(signers, DOCUMENT_CAP_BYTES)
    except FileNotFoundError as error:
        return Signature(good=False, problem=f"there is no {Path(error.filename).name}")
    except (OSError, ValueError) as error:
        return Signature(good=False, problem=reason(error))
    if shutil.which(_TOOL) is None:
        return _named_key(armoured, signers, org)
    with tempfile.TemporaryDirectory() as folder:
        # What was read is verified: the files may be links by now.
        copies = {"signature": armoured, "signers": keys}
        for name, text in copies.items():
            Path(folder, name).write_bytes(text)
        command = [_TOOL, "-Y", "verify", "-n", namespace, "-I", org]
        command += ["-f", f"{folder}/signers", "-s", f"{folder}/signature"]
        try:
            done = subprocess.run(
                command, input=content, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Signature(good=False, problem=f"{_TOOL} took more than {_TIMEOUT_S} s")
    match = _GOOD.search(done.stdout.decode(errors="replace"))
    if done.returncode == 0 and match is not None:
        return Signature(good=True, key=visible(f"{match[1]} {match[2]}"))
    return Signature(good=False, problem=f"no key of {visible(org)} has made it")


def _named_key(armoured: bytes, signers: Path, org: str) -> Signature:
    """Return whether the key that a signature names is listed for ``org``; nothing is verified."""
    problem = f"{_TOOL} is not installed"
    match = _ARMOUR.search(armoured)
    try:
        blob = base64.b64decode(match[1], validate=False) if match else b""
    except ValueError:
        blob = b""
    # PROTOCOL.sshsig: the magic, a version, then the public key, whose first field is its type.
    key = _field(blob, len(_MAGIC) + 4) if blob.startswith(_MAGIC) else b""
    kind = _field(key, 0).decode(errors="replace")
    listed = base64.b64encode(key).decode() in _keys_of(signers, org)
    if not key or not listed or kind not in _KINDS:
        return Signature(good=False, problem=f"no key of {visible(org)} has made it")
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return Signature(
        good=True, problem=problem, key=f"{_KINDS[kind]} SHA256:{digest}", verified=False
    )


def _field(blob: bytes, start: int) -> bytes:
    """Return the string that begins at ``start``, after its length in four bytes."""
    length = int.from_bytes(blob[start : start + 4], "big")
    return blob[start + 4 : start + 4 + length]


def sign_file(path: Path, key: Path, namespace: str) -> Path:
    """Sign the file ``path`` with the SSH ``key``; return the path of the signature.

    ``key`` is a private key, or the public one of a key in an agent or on a token.

    Raises:
        UserError: exit status 4 if it cannot be signed.
    """
    if shutil.which(_TOOL) is None:
        raise _refuse(path, f"the program {_TOOL}", "no such program", "install OpenSSH")
    signature = path.with_name(f"{path.name}.sig")
    with contextlib.suppress(FileNotFoundError):
        signature.unlink()  # ssh-keygen would ask whether to overwrite it
    command = [_TOOL, "-Y", "sign", "-q", "-n", namespace, "-f", str(key), str(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or not signature.exists():
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        remedy = "name a private SSH key, or a public one whose private key an agent has"
        raise _refuse(path, f"a signature by {key}", visible(words[-1]), remedy)
    return signature


def _refuse(path: Path, expected: str, found: str, remedy: str) -> UserError:
    finding = Finding("sign.key", expected, found, remedy, path=str(path))
    return UserError(finding, ExitCode.ENVIRONMENT)


def _keys_of(signers: Path, org: str) -> list[str]:
    """Return the words of the lines of the file ``signers`` that list keys for ``org``."""
    try:
        text = read_bounded(signers, DOCUMENT_CAP_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return []
    lines = (line.split() for line in text.splitlines())
    return [
        word
        for words in lines
        if words
        and not words[0].startswith("#")
        and any(
            not pattern.startswith("!") and fnmatchcase(org, pattern)
            for pattern in words[0].strip('"').split(",")
        )
        for word in words[1:]
    ]


_STATEMENT: Final = re.compile(r"rerun_([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.json")


@dataclass(frozen=True, slots=True)
class Subject:
    """The result that was run again, as it was sealed."""

    org: str
    system: str
    benchmark: str
    sums_sha256: str  #: of its SHA256SUMS, which names every file


@dataclass(frozen=True, slots=True)
class Attestation:
    """What an organisation found when it ran a result again."""

    format: int
    by: str  #: organisation
    subject: Subject
    runs: int  #: completed runs of the re-run
    commit: str  #: of the code, as the result names it
    rerun_sums_sha256: str  #: of the re-run's own SHA256SUMS
    quality: bool  #: every completed re-run reached the target, scored again
    samples: bool  #: samples to target are consistent, by Welch's test at 5 %
    samples_p_value: float | None  #: None if all runs took the same number
    like_hardware: bool  #: models and numbers of processors and accelerators are equal
    time: bool  #: the 95 % intervals of the time to train overlap
    time_s: float  #: mean of the re-run; 0 if it has too few runs for an interval

    @property
    def problem(self) -> str:
        """Return what keeps the re-run from confirming the result; ``""`` if nothing does."""
        found = {
            "it did not reach the target": self.quality,
            "its samples to target differ": self.samples,
            "it was made on other hardware": self.like_hardware,
            "it has too few runs for a time to train": self.time_s > 0,
            "its time to train differs": self.time,
        }
        return next((words for words, holds in found.items() if not holds), "")

    def as_json(self) -> dict[str, object]:
        """Return the fields as the file holds them."""
        return dataclasses.asdict(self)


def attestation_file(package: Package, org: str) -> Path:
    """Return the path, in the result's folder, of the statement of ``org``."""
    return package.folder / f"rerun_{org}.json"


def subject_of(package: Package) -> Subject:
    """Describe a result by place and content.

    Raises:
        OSError: if it has no SHA256SUMS.
        ValueError: if that is not a regular file.
    """
    sums = read_bounded(package.folder / SUMS, DOCUMENT_CAP_BYTES)
    digest = hashlib.sha256(sums).hexdigest()
    return Subject(package.org, package.system, package.benchmark, digest)


def read_attestations(package: Package) -> Iterator[tuple[Path, Attestation | str]]:
    """Yield the path of each statement about a result, with the statement or why it is none."""
    for path in sorted(package.folder.glob("rerun_*.json")):
        name = _STATEMENT.fullmatch(path.name)
        try:
            statement = build(Attestation, read_object(path), path=path.name)
        except (OSError, ValueError) as error:
            yield path, reason(error)
        except UserError as error:
            yield path, str(error)
        else:
            agrees = name is not None and statement.by == name[1]
            yield path, statement if agrees else "the name of another organisation than its own"
