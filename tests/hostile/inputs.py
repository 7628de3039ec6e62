"""What a hostile input is, and how one is written down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.packages import chained, edit_log, edit_manifest, log_path, place, read_bodies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package

RUN = 2  #: the number of the run that is made hostile
TOKEN = b":::MLLOG "


@dataclass(frozen=True)
class Hostile:
    """One input: how a valid result becomes it, and rules that must find it, others aside."""

    name: str
    make: Callable[[Package], Path | None]  #: returns what to check, or None for the whole folder
    rules: frozenset[str]
    large: bool = False  #: too large to be read more often than needed


def hostile(
    name: str, make: Callable[[Package], object], *rules: str, large: bool = False
) -> Hostile:
    """Return the input that ``make`` makes of a result, to be checked as a whole."""

    def whole(package: Package) -> None:
        make(package)

    return Hostile(name, whole, frozenset(rules), large)


def elsewhere(name: str, make: Callable[[Package], Path], *rules: str) -> Hostile:
    """Return the input that is checked at the path that ``make`` returns."""
    return Hostile(name, make, frozenset(rules))


def content(name: str, edit: Callable[[bytes], bytes], *rules: str, large: bool = False) -> Hostile:
    """Change the bytes of a log after it was sealed."""

    def make(package: Package) -> None:
        path = log_path(package, RUN)
        path.write_bytes(edit(path.read_bytes()))

    return hostile(name, make, *rules, large=large)


def line(name: str, payload: bytes, *rules: str, large: bool = False) -> Hostile:
    """Insert a line with ``payload`` after the token."""

    def edit(text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        return b"".join([*lines[:3], TOKEN, payload, b"\n", *lines[3:]])

    return content(name, edit, *(rules or ("log.line",)), large=large)


def bodies(name: str, edit: Callable[[list[str]], object], *rules: str) -> Hostile:
    """Change the JSON texts as a forger would: chain and manifest follow."""
    return hostile(name, lambda package: edit_log(package, RUN, edit), *rules)


def text_of(key: str, nth: int, /, **texts: str) -> Callable[[list[str]], None]:
    """Return an edit that writes ``texts``, which need not be JSON, as fields of a line."""

    def edit(lines: list[str]) -> None:
        index = place(lines, key, nth)
        fields = {name: json.dumps(value) for name, value in json.loads(lines[index]).items()}
        pairs = ", ".join(f'"{name}": {text}' for name, text in (fields | texts).items())
        lines[index] = f"{{{pairs}}}"

    return edit


def field(name: str, key: str, nth: int, /, *rules: str, **texts: str) -> Hostile:
    return bodies(name, text_of(key, nth, **texts), *rules)


def moved(name: str, times: Callable[[int, int], int], *rules: str) -> Hostile:
    """Stamp every line with what ``times`` makes of its index and its time."""

    def edit(lines: list[str]) -> None:
        for index, body in enumerate(lines):
            entry = json.loads(body)
            lines[index] = json.dumps(entry | {"time_ms": times(index, entry["time_ms"])})

    return bodies(name, edit, *rules)


def manifest(name: str, text: bytes, *rules: str) -> Hostile:
    return hostile(
        name, lambda package: (package.folder / f"result_{RUN}.json").write_bytes(text), *rules
    )


def facts(name: str, /, *rules: str, **sealed: object) -> Hostile:
    return hostile(name, lambda package: edit_manifest(package, RUN, **sealed), *rules)


def system(name: str, text: bytes, *rules: str) -> Hostile:
    return hostile(name, lambda package: package.system_file.write_bytes(text), *rules)


def every_log(package: Package, edit: Callable[[list[str]], object]) -> None:
    """Change the JSON texts of all five logs as a forger would."""
    for number in range(5):
        edit_log(package, number, edit)


def without(*names: str) -> Callable[[Package], None]:
    """Return what removes files from a result's folder."""

    def make(package: Package) -> None:
        for name in names:
            (package.folder / name).unlink()

    return make


def rewritten(package: Package, edit: Callable[[list[str]], object], number: int = RUN) -> bytes:
    """Return a run's log, edited and chained anew, without writing it."""
    lines = read_bodies(log_path(package, number))
    edit(lines)
    return chained(lines).encode()
