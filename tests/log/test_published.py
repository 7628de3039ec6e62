"""The lenient reader takes what the official checker took, and never raises."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.reader import read_published_log

_REST = '"value": 1, "metadata": {}'

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_that_are_no_utf_8_and_lines_that_share_one_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(
        b"\xff\n"
        b'0: :::MLLOG {"key": "a", "time_ms": 1, "value": "\xe9", "metadata": {}}\r\n'
        b'50%\r:::MLLOG {"key": "b", "time_ms": 2.5, "value": NaN, "metadata": {}}'
        b'\r:::MLLOG {"key": "c", "time_ms": 3, "value": -Infinity, "metadata": {}}\r\n'
        b':::MLLOG {"key": "d", "time_ms": 4, "value": 1e999, "metadata": []} \xa0'
    )

    log = read_published_log(path, "log")

    assert log.findings == []
    assert [(entry.line, entry.key) for entry in log.entries] == [
        (2, "a"),
        (3, "b"),
        (3, "c"),
        (4, "d"),
    ]
    assert log.value("a") == "é"
    assert repr(log.value("b")) == "nan"
    assert (log.value("c"), log.value("d")) == (-math.inf, math.inf)
    assert log.entries[3].metadata == {}


def test_lines_that_no_rule_looks_at_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    rest = '"time_ms": 1, "value": 1, "metadata": {}'
    path.write_text(
        f':::MLLOG {{"key": null, {rest}}}\n:::MLLOG {{"key": [1], {rest}}}\n'
        f':::MLLOG{{"key": "near", {rest}}}\n:::MLLOG {{"key": "a", {rest}}}\n'
    )

    log = read_published_log(path, "log")

    assert log.findings == []
    assert [entry.key for entry in log.entries] == ["a"]


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "1",
        "{" * 40_000,
        '{"key":' * 20,
        "[" * 17 + '\\"' * 30_000,
        '{"key": "a"}',
        f'{{"key": "a", "time_ms": NaN, {_REST}}}',
        f'{{"key": "a", "time_ms": 1e999, {_REST}}}',
        f'{{"key": "a", "time_ms": "1", {_REST}}}',
        f'{{"key": "a", "time_ms": true, {_REST}}}',
        f'{{"key": "a", "time_ms": {"9" * 5000}, {_REST}}}',
        f'{{"key": "a", "time_ms": {"9" * 400}, {_REST}}}',
        f'{{"key": "{"a" * 70_000}", "time_ms": 1, {_REST}}}',
        '{"key": "a", "time_ms": 1, "value": 1}',
        '{"key": "a", "time_ms": 1, "metadata": {}}',
    ],
    ids=range(16),
)
def test_a_line_that_cannot_be_read_is_a_finding(tmp_path: Path, payload: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f":::MLLOG {payload}\n")

    (finding,) = read_published_log(path, "log").findings

    assert (finding.rule, finding.line) == ("mlperf.line", 1)
    assert len(finding.sentence) < 400


def test_of_many_lines_that_cannot_be_read_ten_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(":::MLLOG x\n" * 1000)

    findings = read_published_log(path, "log").findings

    assert len(findings) == 11
    assert findings[-1].found == "1000 lines that are not"


def test_a_log_that_is_no_file_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "pipe", "none"):
        log = read_published_log(tmp_path / name, name)
        assert [finding.rule for finding in log.findings] == ["log.file"]
        assert log.entries == []
