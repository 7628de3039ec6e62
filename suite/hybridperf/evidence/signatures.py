"""Detached signatures by OpenSSH keys, and which organisation has which key.

``ssh-keygen -Y`` makes and verifies them, so that a key, an agent or a hardware token that its
owner has is enough. Keys are listed in a file in the format ALLOWED SIGNERS of ssh-keygen(1), whose
principals are the names of organisations.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RERUN", "RESULT", "SIGNERS", "Signature", "has_key", "sign_file", "verify_file"]

SIGNERS: Final = "allowed_signers"  #: file beside the folders of the organisations
RESULT: Final = "hybridperf-result"  #: namespace of signatures of SHA256SUMS
RERUN: Final = "hybridperf-rerun"  #: namespace of signatures of attestations of re-runs
_TIMEOUT_S: Final = 30
_TOOL: Final = "ssh-keygen"
_GOOD: Final = re.compile(r'Good "[^"]+" signature for .* with (\S+) key (SHA256:\S+)')


@dataclass(frozen=True, slots=True)
class Signature:
    """The outcome of verifying a signature."""

    good: bool
    problem: str = ""  #: why it is not good
    key: str = ""  #: kind and fingerprint of the key


def has_key(signers: Path, org: str) -> bool:
    """Return whether the file ``signers`` lists a key for ``org``; a missing file lists none."""
    return any(
        not pattern.startswith("!") and fnmatchcase(org, pattern)
        for patterns in _principals(signers)
        for pattern in patterns
    )


def verify_file(path: Path, signature: Path, signers: Path, org: str, namespace: str) -> Signature:
    """Verify that a key of ``org`` in ``signers`` has signed the file ``path``."""
    if shutil.which(_TOOL) is None:
        return Signature(good=False, problem=f"{_TOOL} is not installed here")
    try:
        content = read_bounded(path, DOCUMENT_CAP_BYTES)
        armoured = read_bounded(signature, DOCUMENT_CAP_BYTES)
        keys = read_bounded(signers, DOCUMENT_CAP_BYTES)
    except FileNotFoundError as error:
        return Signature(good=False, problem=f"there is no {Path(error.filename).name}")
    except (OSError, ValueError) as error:
        return Signature(good=False, problem=reason(error))
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


def _principals(signers: Path) -> Iterator[list[str]]:
    """Yield the patterns of principals of each line of the file ``signers``."""
    try:
        text = read_bounded(signers, DOCUMENT_CAP_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    for line in text.splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            yield words[0].strip('"').split(",")
