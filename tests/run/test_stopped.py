"""Processes that a signal from outside has stopped are continued, and no limit is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.run.conftest import finished

if TYPE_CHECKING:
    from tests.run.conftest import Bench


def running(bench: Bench, kind: str) -> list[psutil.Process]:
    """Return the processes of ``kind``: ``agent``, ``rank``, ``server`` or ``predictor``."""
    found = []
    for process in bench.processes_left():
        with contextlib.suppress(psutil.Error):
            scores = any("hybridperf.run.rescore" in word for word in process.cmdline())
            starts = bool(process.children())
            # The server starts a predictor, and a predictor is its fork.
            own = {"agent": not scores and starts, "rank": not scores and not starts}
            own |= {"server": scores and starts, "predictor": scores and _is_fork(process)}
            found += [process] if own[kind] else []
    return found


def _is_fork(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and parent.cmdline() == process.cmdline()


@pytest.mark.parametrize("kind", ["agent", "rank", "server", "predictor"])
def test_a_run_goes_on_whatever_of_it_was_stopped(bench: Bench, kind: str) -> None:
    seen = bench.note("seen")  # until then, the predictor waits
    process = bench.start("--plan", "dp=2", FAULT="predict waits", SEEN=str(seen))
    while not (found := running(bench, kind)):
        assert process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[0].pid, signal.SIGSTOP)
    seen.write_text("seen")

    assert finished(process).code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["success"]


def test_a_rank_that_stops_itself_is_continued_and_its_time_counts(bench: Bench) -> None:
    assert bench.strike("stop", "--plan", "dp=2", rank=1).code == 0
    bench.assert_settled()
    (manifest,) = bench.manifests()
    assert manifest["outcome"] == "success"
    assert manifest["supervisor"]["run_s"] > 2
