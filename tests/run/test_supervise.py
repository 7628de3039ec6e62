from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.writer import LogWriter
from hybridperf.run import supervise
from hybridperf.run.ending import RunOutcome
from hybridperf.run.processes import Pulse
from hybridperf.run.supervise import _describe_silence, _Watch
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.run.spec import RunSpec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    order = run_spec(tmp_path, task_path="unused", trainer="unused", plan="dp=2")
    order.log.touch()
    order.work.mkdir()
    return order


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A monotonic clock that goes forward only where the test says so."""
    clock = SimpleNamespace(now_s=100.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(supervise, "time", clock)
    return clock


def test_a_rank_that_stops_while_others_go_on_is_silent(
    spec: RunSpec, clock: SimpleNamespace
) -> None:
    watch = _Watch(launched_s=clock.now_s)
    pulses = [Pulse(spec.pulse_of(0), rank) for rank in (0, 1)]
    for pulse in pulses:
        pulse.beat()
    watch.read(spec, 2)
    clock.now_s += 0.2
    pulses[0].beat()
    watch.read(spec, 2)

    assert watch.silent_ranks(0.1) == [1]
    assert _describe_silence([1], watch.batches, 0.1).startswith("rank 1 made no progress")
    for pulse in pulses:
        pulse.close()


def test_a_harness_that_is_stopped_after_it_wrote_a_line_measures_when_it_wrote_it(
    spec: RunSpec, clock: SimpleNamespace
) -> None:
    watch = _Watch(launched_s=clock.now_s)
    written_s = {"run_start": 101.0, "run_stop": 103.5}
    for key in written_s:
        with LogWriter(spec.log) as log:
            log.point(key, status="success")
        clock.now_s += 7
        watch.read(spec, 2, None, written_s)

    assert watch.ending(RunOutcome.SUCCESS).run_s == 2.5


def test_a_trainer_that_notes_no_progress_is_judged_by_its_log(
    spec: RunSpec, clock: SimpleNamespace
) -> None:
    watch = _Watch(launched_s=clock.now_s)
    watch.read(spec, 2)
    clock.now_s += 0.2

    assert watch.silent_ranks(0.1) == [0]

    line = b':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x", "metadata": {}}\n'
    with spec.log.open("ab") as log:
        os.write(log.fileno(), line)
    watch.read(spec, 2)

    assert watch.silent_ranks(0.1) == []
