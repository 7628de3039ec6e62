from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from suite.logs.clock import LogClock
from suite.runs.pulse import Pulse
from suite.runs.spec import RunSpec
from suite.runs.supervise import _describe_silence, _Watch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    order = RunSpec(
        folder=str(tmp_path),
        attempt=0,
        task_path="unused",
        trainer="unused",
        overrides={},
        plan="dp=2",
        seed=1,
        org="local",
        platform="here",
        division="closed",
        clock=LogClock(),
    )
    order.log.touch()
    return order


def test_a_rank_that_stops_while_others_go_on_is_silent(spec: RunSpec) -> None:
    watch = _Watch(launched_s=time.monotonic())
    pulses = [Pulse(spec.pulse, rank) for rank in (0, 1)]
    for pulse in pulses:
        pulse.beat()
    watch.read(spec, 2)
    time.sleep(0.2)
    pulses[0].beat()
    watch.read(spec, 2)

    assert watch.silent_ranks(0.1) == [1]
    assert _describe_silence([1], watch.batches, 0.1).startswith("rank 1 made no progress")
    for pulse in pulses:
        pulse.close()


def test_a_trainer_that_notes_no_progress_is_judged_by_its_log(spec: RunSpec) -> None:
    watch = _Watch(launched_s=time.monotonic())
    watch.read(spec, 2)
    time.sleep(0.2)

    assert watch.silent_ranks(0.1) == [0]

    line = b':::MLLOG {"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "x", "metadata": {}}\n'
    with spec.log.open("ab") as log:
        os.write(log.fileno(), line)
    watch.read(spec, 2)

    assert watch.silent_ranks(0.1) == []
