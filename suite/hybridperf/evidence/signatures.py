"""Detached signatures by OpenSSH keys, and which organisation has which key.

``ssh-keygen -Y`` makes and verifies them, so that a key, an agent or a hardware token that its
owner has is enough. Keys are listed in a file in the format ALLOWED SIGNERS of ssh-keygen(1), whose
principals are the names of organisations.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

__all__ = ["RERUN", "RESULT", "SIGNERS", "Signature", "has_key", "sign_file", "verify_file"]

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
