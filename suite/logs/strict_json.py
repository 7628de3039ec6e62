"""Read files and JSON of unknown origin: bounded, once, and with numbers that are numbers."""

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
    "DEPTH_CAP",
    "depth",
    "exists",
    "open_bounded",
    "parse_object",
    "read_bounded",
    "reason",
]

DEPTH_CAP: Final = 16
_WORDS: Final = {  # for what the system calls by the mechanism
    errno.ENOENT: "no such file",
    errno.ELOOP: "a symbolic link, which is not followed",
    errno.EACCES: "a file that this user may not read",
}
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')  # without an end too: always one pass


def parse_object(text: str, *, last_of_keys: bool = False) -> dict[str, object]:
    """Read one JSON object; with ``last_of_keys``, of a key that stands twice the last counts.

    Raises:
        ValueError: saying what is wrong: syntax, depth, a key twice, a number that is none.
    """
    if depth(text) > DEPTH_CAP:
        raise ValueError(f"nesting deeper than {DEPTH_CAP}")
    try:
        value = json.loads(
            text,
            object_pairs_hook=dict if last_of_keys else _once,
            parse_constant=_no_constant,
            parse_int=_short_int,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        what = error.msg.removesuffix(" at")
        raise ValueError(f"no JSON: {what} at {line}column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError("JSON that is not an object")  # noqa: TRY004 - wrong text, not a wrong argument
    if not _finite(value):
        raise ValueError("a number too large to be one")
    return value


def depth(text: str) -> int:
    """Return how deep the objects and arrays of JSON text nest."""
    level = deepest = 0
    for char in _STRINGS.sub("", text):
        if char in "{[":
            level += 1
            deepest = max(deepest, level)
        elif char in "}]":
            level -= 1
    return deepest


def exists(path: Path) -> bool:
    """Tell whether something is at ``path``, also where no file could have such a name.

    Raises:
        PermissionError: where this user may not know.
    """
    try:
        path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file; links, pipes and devices are not followed or read.

    Raises:
        OSError: where it cannot be opened.
        ValueError: where it is no regular file, or a larger one.
    """
    with open_bounded(path, most_bytes) as file:
        return file.read(most_bytes)


def open_bounded(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file for reading; links, pipes and devices are not followed or opened.

    Raises:
        OSError: where it cannot be opened.
        ValueError: where it is no regular file, or a larger one.
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
    """Return what went wrong, without the path, which may tell of the reader's machine."""
    if isinstance(error, OSError):
        return _WORDS.get(error.errno or 0) or error.strerror or "no answer"
    return str(error)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key that stands twice in one object")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON number")


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a number too large to be one")
    return int(digits)


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    return not isinstance(value, list) or all(_finite(item) for item in value)
