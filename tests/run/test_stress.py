"""SIGKILL and SIGSTOP at random instants to harness, ranks and predictor: no orphan, no hang.

HYBRIDPERF_STRESS is the number of trials of each plan, each of which takes up to half a minute: 150
make 300.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import psutil
import pytest

from tests.run.conftest import Bench, limits, wait_until

TRIALS = int(os.environ.get("HYBRIDPERF_STRESS", "0"))
QUIET_S = 8.0  #: after which a stopped rank is silent


@pytest.mark.skipif(not TRIALS, reason="takes minutes: HYBRIDPERF_STRESS is not set")
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("plan", ["dp=1", "dp=4"])
def test_a_signal_to_any_process_at_any_instant_leaves_nothing_behind(
    bench: Bench, plan: str
) -> None:
    chance = random.Random(plan)
    start_s = time.monotonic()
    assert bench.run("--plan", plan, quick=False).code == 0
    whole_s = time.monotonic() - start_s
    sealed = bench.manifests()

    for trial in range(TRIALS):
        wanted = sum(manifest["outcome"] == "success" for manifest in sealed) + 1
        process = bench.start("--plan", plan, runs=wanted, quick=False, **limits(silence_s=QUIET_S))
        time.sleep(chance.uniform(0.1, 1.0) * whole_s)
        number = chance.choice((signal.SIGKILL, signal.SIGSTOP))
        # The command itself may be the one that is hit, or have ended already.
        targets = [process.pid, *(each.pid for each in bench.processes_left())]
        target = chance.choice(targets)
        predicts = _predicts(target)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)
        # A stopped rank falls silent; the command and the predictor have all the time they need.
        if number == signal.SIGSTOP and (target == process.pid or predicts):
            time.sleep(chance.uniform(0.1, 1.0))
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGCONT)
        out, err = process.communicate(timeout=300)
        code = process.returncode

        what = (trial, target == process.pid, number.name, code, err)
        assert "Traceback" not in out + err, what
        assert code in {0, 3, 4, -signal.SIGKILL}, what
        wait_until(lambda: not bench.processes_left(), timeout_s=60)
        bench.assert_consistent()
        now = bench.manifests()
        assert now[: len(sealed)] == sealed, what
        sealed = now

    wanted = sum(manifest["outcome"] == "success" for manifest in sealed) + 1
    assert bench.run("--plan", plan, runs=wanted, quick=False).code == 0
    bench.assert_settled()
    assert not any(_is_ours(bench, process) for process in psutil.process_iter())


def _predicts(pid: int) -> bool:
    """Return whether a process is the predictor server or a predictor, which is its fork."""
    with contextlib.suppress(psutil.Error):
        return any("predictor_server" in word for word in psutil.Process(pid).cmdline())
    return False


def _is_ours(bench: Bench, process: psutil.Process) -> bool:
    """Return whether a process has anything of the bench open, whatever its environment says."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(str(bench.out) in file.path for file in process.open_files())
    return False
