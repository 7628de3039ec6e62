from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.log.chain import split_line
from hybridperf.log.reader import read_log
from hybridperf.log.writer import TOKEN
from tests.packages import chained, log_path, read_bodies, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.log import Log

LINES = 40
_HEAD = len(TOKEN)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of a chained log, ends included."""
    package = write_result(tmp_path_factory.mktemp("chain"), times_s=[10.0])
    text = chained(read_bodies(log_path(package, 0))[:LINES])
    return text.encode().splitlines(keepends=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited") / "log.txt"


def _read(path: Path, lines: list[bytes]) -> Log:
    path.write_bytes(b"".join(lines))
    return read_log(path)


def _first_wrong(log: Log) -> int:
    return min(finding.line or 0 for finding in log.findings)


def _edited(line: bytes, column: int, byte: int) -> bytes:
    return line[:column] + bytes([byte]) + line[column + 1 :]


def test_an_untouched_log_is_chained(path: Path, lines: list[bytes]) -> None:
    log = _read(path, lines)

    assert log.findings == []
    assert log.chained
    assert len(log.entries) == LINES


@given(data=st.data(), number=st.integers(1, LINES), byte=st.integers(0, 255))
def test_an_edit_of_one_byte_of_a_line_is_found_there(
    path: Path, lines: list[bytes], data: st.DataObject, number: int, byte: int
) -> None:
    line = lines[number - 1]
    column = data.draw(st.integers(_HEAD, len(line) - 2))
    before = line[column]
    edit = byte if byte != before else before ^ 1

    log = _read(path, [*lines[: number - 1], _edited(line, column, edit), *lines[number:]])

    assert not log.chained
    assert _first_wrong(log) == number


def test_two_thousand_edits_of_one_byte_are_all_found(path: Path, lines: list[bytes]) -> None:
    draw = random.Random(20_260_101)
    part = lines[:8]
    content = b"".join(part)
    starts = [sum(map(len, part[:number])) for number in range(len(part))]
    missed = []

    for _ in range(2000):
        number = draw.randrange(len(part))
        position = starts[number] + draw.randrange(_HEAD, len(part[number]) - 1)
        edit = draw.choice([byte for byte in range(256) if byte != content[position]])
        log = _read(path, [content[:position], bytes([edit]), content[position + 1 :]])
        if log.chained or _first_wrong(log) != number + 1:
            missed.append((position, edit))

    assert missed == []


@given(number=st.integers(1, LINES - 1), column=st.integers(0, _HEAD - 2))
def test_an_edit_that_hides_a_line_is_found_at_the_next(
    path: Path, lines: list[bytes], number: int, column: int
) -> None:
    hidden = _edited(lines[number - 1], column, ord("?"))

    log = _read(path, [*lines[: number - 1], hidden, *lines[number:]])

    assert _first_wrong(log) == number + 1


@given(number=st.integers(1, LINES - 1))
def test_a_removed_line_is_found_where_it_stood(
    path: Path, lines: list[bytes], number: int
) -> None:
    log = _read(path, [*lines[: number - 1], *lines[number:]])

    assert not log.chained
    assert _first_wrong(log) == number


@given(number=st.integers(1, LINES))
def test_a_line_that_stands_twice_is_found_where_it_stands_again(
    path: Path, lines: list[bytes], number: int
) -> None:
    log = _read(path, [*lines[:number], *lines[number - 1 :]])

    assert not log.chained
    assert _first_wrong(log) == number + 1


@given(number=st.integers(1, LINES + 1), source=st.integers(1, LINES), hashed=st.booleans())
def test_an_inserted_line_is_found_with_and_without_a_hash(
    path: Path, lines: list[bytes], number: int, source: int, hashed: bool
) -> None:
    body = _body(lines[source - 1])
    new = chained([body]) if hashed else f"{TOKEN}{body}\n"

    log = _read(path, [*lines[: number - 1], new.encode(), *lines[number - 1 :]])

    assert not log.chained
    # A first line chained from nothing may be true; then what follows it is not.
    assert _first_wrong(log) == (number if number > 1 or not hashed else 2)


@given(number=st.integers(1, LINES - 1), distance=st.integers(1, LINES - 1))
def test_swapped_lines_are_found_at_the_first_of_them(
    path: Path, lines: list[bytes], number: int, distance: int
) -> None:
    other = min(number + distance, LINES)
    swapped = list(lines)
    swapped[number - 1], swapped[other - 1] = lines[other - 1], lines[number - 1]

    log = _read(path, swapped)

    assert not log.chained
    assert _first_wrong(log) == number


@given(number=st.integers(1, LINES - 1))
def test_lines_that_are_joined_are_found(path: Path, lines: list[bytes], number: int) -> None:
    joined = [*lines[: number - 1], lines[number - 1].rstrip(b"\n"), *lines[number:]]

    log = _read(path, joined)

    assert not log.chained
    assert _first_wrong(log) == number


def test_a_log_without_any_hash_is_plain(path: Path, lines: list[bytes]) -> None:
    plain = [f"{TOKEN}{_body(line)}\n".encode() for line in lines]

    log = _read(path, plain)

    assert log.findings == []
    assert not log.chained
    assert len(log.entries) == LINES


def _body(line: bytes) -> str:
    parts = split_line(line.decode().removeprefix(TOKEN).strip())
    assert parts is not None
    return parts[0]
