"""Bounded readers of untrusted files, JSON and values.

Logs, manifests, system descriptions, claims and reference points may come from anyone. They are
read once, within limits; values are used only after one of these functions has accepted them.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "COUNT_CAP",
    "DEPTH_CAP",
    "DEVICES_CAP",
    "DOCUMENT_CAP_BYTES",
    "LINE_CAP_BYTES",
    "LOG_CAP_BYTES",
    "MODULE_CAP_BYTES",
    "NUMBER_CAP",
    "OUTPUT_CAP_BYTES",
    "PREDICTIONS_CAP_BYTES",
    "PULSE_CAP_BYTES",
    "RATIO_CAP",
    "TIME_CAP_MS",
    "WEIGHTS_CAP_BYTES",
    "archive_kind",
    "exists",
    "number",
    "open_bounded",
    "parse_count",
    "parse_object",
    "read_bounded",
    "read_object",
    "reason",
    "refuse_deep",
    "whole",
]

LOG_CAP_BYTES: Final = 64 * 2**20
LINE_CAP_BYTES: Final = 64 * 2**10  #: limit of a line of a log
DOCUMENT_CAP_BYTES: Final = 2**20  #: limit of a JSON or TOML file, or a list of hashes
OUTPUT_CAP_BYTES: Final = 2**18  #: limit of the end of ranks' output that is read
PREDICTIONS_CAP_BYTES: Final = 2**30
WEIGHTS_CAP_BYTES: Final = 2**36  #: limit of final weights of an unknown number
MODULE_CAP_BYTES: Final = 2**30  #: limit of a file of code that a rank imported
PULSE_CAP_BYTES: Final = 2**30  #: limit of the file of ranks' progress
DEPTH_CAP: Final = 16  #: largest nesting of objects and arrays in JSON

NUMBER_CAP: Final = 2**64  #: largest number: seeds have up to 64 bits, and sums stay finite
COUNT_CAP: Final = 10**15  #: largest number of samples, steps or epochs
DEVICES_CAP: Final = 10**7  #: largest number of nodes, accelerators or cores, also in total
RATIO_CAP: Final = 10**6  #: largest factor or efficiency
TIME_CAP_MS: Final = 253_402_300_799_999  #: the end of the year 9999

_INT_DIGITS: Final = 20  # largest number of digits of a JSON integer
_WHOLE_TEXT: Final = re.compile(r"([0-9]{1,15})(?:\.0*)?")
_WORDS: Final = {  # plainer than the system's own messages
    errno.ENOENT: "no such file",
    errno.ELOOP: "a symbolic link, which is not followed",
    errno.EACCES: "a file that cannot be read (permission denied)",
}
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')  # also unterminated: always one pass
_MAGIC: Final = {  # (offset, magic number) by kind of archive
    "a zip archive": (0, b"PK\x03\x04"),
    "an empty zip archive": (0, b"PK\x05\x06"),
    "a gzip archive": (0, b"\x1f\x8b"),
    "a bzip2 archive": (0, b"BZh"),
    "an xz archive": (0, b"\xfd7zXZ\x00"),
    "a zstd archive": (0, b"\x28\xb5\x2f\xfd"),
    "a 7z archive": (0, b"7z\xbc\xaf\x27\x1c"),
    "a rar archive": (0, b"Rar!\x1a\x07"),
    "a tar archive": (257, b"ustar"),  # its members could be read as one text
}


def number(
    value: object, least: float = -NUMBER_CAP, most: float = NUMBER_CAP
) -> int | float | None:
    """Return ``value`` if it is a number in [``least``, ``most``], else None.

    Booleans and NaN are not numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if least <= value <= most else None


def whole(value: object, least: int = -NUMBER_CAP, most: int = NUMBER_CAP) -> int | None:
    """Return ``value`` as int if it is integral and in [``least``, ``most``], else None.

    Floats with integral values are accepted.
    """
    found = number(value, least, most)
    return int(found) if found is not None and found == int(found) else None


def parse_count(value: object, least: int = 0, most: int = DEVICES_CAP) -> int | None:
    """Return ``value``, a number or text such as ``"8"``, as int if in bounds, else None."""
    if isinstance(value, str):
        match = _WHOLE_TEXT.fullmatch(value.strip())
        return whole(int(match[1]), least, most) if match else None
    return whole(value, least, most)


def parse_object(text: str, *, last_of_keys: bool = False) -> dict[str, object]:
    """Parse one JSON object; with ``last_of_keys``, the last of duplicate keys counts.

    Raises:
        ValueError: on invalid syntax, deep nesting, a duplicate key or a number out of range.
    """
    refuse_deep(text)
    try:
        value = (_LAST_OF_KEYS if last_of_keys else _STRICT).decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        what = error.msg.removesuffix(" at")
        raise ValueError(f"invalid JSON: {what} at {line}column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError("JSON that is not an object")  # noqa: TRY004 - wrong text, not a wrong argument
    return value


def refuse_deep(text: str) -> None:
    """Refuse JSON text nested deeper than `DEPTH_CAP`.

    Raises:
        ValueError: if the nesting is deeper.
    """
    # Counting brackets is far faster, and enough for most texts.
    if text.count("{") + text.count("[") > DEPTH_CAP and _depth(text) > DEPTH_CAP:
        raise ValueError(f"nesting deeper than {DEPTH_CAP}")


def _depth(text: str) -> int:
    level = deepest = 0
    for char in _STRINGS.sub("", text):
        if char in "{[":
            level += 1
            deepest = max(deepest, level)
        elif char in "}]":
            level -= 1
    return deepest


def exists(path: Path) -> bool:
    """Return whether ``path`` exists; an invalid path does not.

    Raises:
        PermissionError: if a folder of the path is not accessible.
    """
    try:
        path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def read_object(path: Path) -> dict[str, object]:
    """Read the JSON object in the file ``path``.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: from `read_bounded` and `parse_object`.
    """
    return parse_object(read_bounded(path, DOCUMENT_CAP_BYTES).decode())


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a regular file; links, pipes and devices are not followed or read.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not a regular file, or has more than ``most_bytes``.
    """
    with open_bounded(path, most_bytes) as file:
        # Not more than the file has: the buffer is allocated first.
        return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))


def open_bounded(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file for reading; links, pipes and devices are not followed or opened.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not a regular file, or has more than ``most_bytes``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
        os.close(descriptor)
        if stat.S_ISREG(status.st_mode):
            raise ValueError(f"{status.st_size} bytes")
        kind = (
            "a folder" if stat.S_ISDIR(status.st_mode) else "something that is not a regular file"
        )
        raise ValueError(kind)
    return os.fdopen(descriptor, "rb", buffering=0)


def reason(error: OSError | ValueError) -> str:
    """Describe ``error`` without its path, which may contain names from this machine."""
    if isinstance(error, OSError):
        return _WORDS.get(error.errno or 0) or error.strerror or "no answer"
    return str(error)


def archive_kind(head: bytes) -> str:
    """Return the kind of archive that begins with the 512 bytes ``head``; ``""`` if it is none."""
    for kind, (start, magic) in _MAGIC.items():
        if head.startswith(magic, start):
            return kind
    return ""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a duplicate key in one object")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not a JSON number")


def _short_int(digits: str) -> int:
    if len(digits) > _INT_DIGITS:
        raise ValueError("a number out of range")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return value


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_once,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_short_int,
)
_LAST_OF_KEYS: Final = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite, parse_int=_short_int
)
