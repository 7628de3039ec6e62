from __future__ import annotations

import itertools
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.log.chain import GENESIS, link, split_line
from hybridperf.log.reader import read_log
from hybridperf.log.writer import TOKEN, LogClock, LogWriter
from tests.packages import MadeUpClock

if TYPE_CHECKING:
    from pathlib import Path

_HOUR_NS = 3_600 * 10**9
_AWKWARD = ['"', "\\", "\n", "\0", "\x85", "ä", "\u2028", "\u202e", "\ufeff", "😀", ":::MLLOG {"]
_TEXTS = st.text(max_size=20) | st.sampled_from(_AWKWARD)
_NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_METADATA = st.dictionaries(st.sampled_from(["epoch_num", "status", "file"]), _VALUES, max_size=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@settings(max_examples=60)  # each makes a file durable
@given(lines=st.lists(st.tuples(_TEXTS, _VALUES, _METADATA), max_size=6))
def test_what_is_written_is_read(
    folder: Path, lines: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    path = folder / "log.txt"
    path.unlink(missing_ok=True)

    with LogWriter(path) as writer:
        for key, value, metadata in lines:
            writer.point(key, value, **metadata)
    log = read_log(path)

    assert log.findings == []
    assert [(each.key, each.value) for each in log.entries] == [line[:2] for line in lines]
    assert all(
        each.metadata.items() >= metadata.items()
        for each, (_, _, metadata) in zip(log.entries, lines, strict=True)
    )
    assert log.chained is bool(lines)


def test_intervals_points_time_and_place_are_written(tmp_path: Path) -> None:
    clock = MadeUpClock(wall_ms=0, monotonic_ns=0)

    with LogWriter(tmp_path / "log.txt", clock) as writer:
        writer.start("run_start")
        clock.advance(1.5)
        writer.point("seed", 1, epoch_num=2)
        writer.stop("run_stop", status="success")
    entries = read_log(tmp_path / "log.txt").entries

    kinds = [each.event_type for each in entries]
    assert kinds == ["INTERVAL_START", "POINT_IN_TIME", "INTERVAL_END"]
    assert [each.line for each in entries] == [1, 2, 3]
    assert entries[1].time_ms - entries[0].time_ms == 1500
    assert entries[1].metadata["epoch_num"] == 2
    assert {each.metadata["file"] for each in entries} == {__name__}


def test_every_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = os.write

    def counting(descriptor: int, content: bytes) -> int:
        writes.append(content)
        return write(descriptor, content)

    with LogWriter(tmp_path / "log.txt") as writer:
        monkeypatch.setattr(os, "write", counting)
        for number in range(5):
            writer.point("tracked_stats", {"text": "x" * 5000 * number})
        monkeypatch.undo()

    assert len(writes) == 5
    assert all(line.startswith(TOKEN.encode()) for line in writes)
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in writes)


def test_each_hash_is_of_the_hash_before_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"

    with LogWriter(path) as writer:
        writer.point("seed", 1)
        writer.point("seed", 2)

    previous = GENESIS
    for line in path.read_text().splitlines():
        body, digest = split_line(line.removeprefix(TOKEN)) or ("", "")
        assert json.loads(line.removeprefix(TOKEN)) == {**json.loads(body), "sha256": digest}
        assert digest == link(previous, body)
        previous = digest


def test_a_second_writer_goes_on_with_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"

    for number in range(3):
        with LogWriter(path) as writer:
            writer.point("seed", number)
    log = read_log(path)

    assert [entry.value for entry in log.entries] == [0, 1, 2]
    assert log.chained


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with LogWriter(path) as writer:
        writer.point("seed", 1)
    whole = path.read_bytes()
    with LogWriter(path) as writer:
        writer.point("seed", 2)
    content = path.read_bytes()

    for length in range(len(whole), len(content), 7):
        path.write_bytes(content[:length])
        with LogWriter(path) as writer:
            writer.point("seed", 3)
        log = read_log(path)

        assert [entry.value for entry in log.entries] == [1, 3]
        assert log.chained


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_written_and_breaks_no_chain(
    tmp_path: Path, number: float
) -> None:
    path = tmp_path / "log.txt"

    with LogWriter(path) as writer:
        with pytest.raises(ValueError, match="JSON"):
            writer.point("eval_accuracy", number)
        writer.point("seed", 1)

    assert [entry.key for entry in read_log(path).entries] == ["seed"]
    assert read_log(path).chained


def test_the_log_runs_forward_when_the_wall_clock_runs_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wall_ns = LogClock(), time.time_ns()

    with LogWriter(tmp_path / "log.txt", clock) as writer:
        for step in range(5):
            monkeypatch.setattr(
                time, "time_ns", itertools.repeat(wall_ns - step * _HOUR_NS).__next__
            )
            writer.point("seed", step)
    times = [entry.time_ms for entry in read_log(tmp_path / "log.txt").entries]

    assert times == sorted(times)
    assert times[0] >= wall_ns // 10**6 - 1000


def test_the_clock_advances_as_the_monotonic_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LogClock(wall_ms=5_000, monotonic_ns=1_000_000_000)

    monkeypatch.setattr(time, "monotonic_ns", lambda: 3_500_000_000)

    assert clock.now_ms() == 7_500
