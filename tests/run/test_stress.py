"""SIGKILL and SIGSTOP at random instants to any process of a run: no orphan, no hang.

HYBRIDPERF_STRESS is the number of signals to send under each plan; one takes about five seconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from tests.run.conftest import LONGEST_S, Bench, wait_until

if TYPE_CHECKING:
    from tests.run.command_server import Command

SIGNALS: Final = int(os.environ.get("HYBRIDPERF_STRESS", "0"))
KINDS: Final = ("harness", "agent", "rank", "predictor")


@pytest.mark.skipif(not SIGNALS, reason="takes minutes: HYBRIDPERF_STRESS is not set")
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("plan", ["dp=1", "dp=4"])
def test_a_signal_to_any_process_at_any_instant_leaves_nothing_behind(
    bench: Bench, plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start_s = time.monotonic()
    assert bench.run("--plan", plan).code == 0
    whole_s = time.monotonic() - start_s
    sealed, found = bench.manifests(), Counter[str]()

    while found.total() < SIGNALS:
        process = bench.start("--plan", plan, runs=_wanted(bench))
        sent = _strike(bench, process, random.choice(KINDS), whole_s)
        out, err = process.communicate(timeout=LONGEST_S)
        code = process.returncode

        what = (sent, code, out, err)
        assert "Traceback" not in out + err, what
        allowed = {0, 4} if sent.startswith(("agent", "rank", "predictor")) else {0, -9}
        assert code in ({0} if sent.endswith("SIGSTOP") else allowed), what
        wait_until(lambda: not bench.processes_left(), timeout_s=60)
        bench.assert_consistent()
        now = bench.manifests()
        assert now[: len(sealed)] == sealed, what
        sealed = now
        if sent:
            found[f"{sent}: exit status {code}"] += 1

    assert bench.run("--plan", plan, runs=_wanted(bench)).code == 0
    bench.assert_settled()
    assert not any(_is_ours(bench, process) for process in psutil.process_iter())
    with capsys.disabled():
        counts = [f"{count} {each}" for each, count in sorted(found.items())]
        sys.stdout.write("\n".join([f"\n{plan}:", *counts, ""]))


def _wanted(bench: Bench) -> int:
    """Return the number of runs that asks for one more."""
    return bench.outcomes().count("success") + 1


def _strike(bench: Bench, process: Command, kind: str, whole_s: float) -> str:
    """Send a signal to a process of ``kind``, or of another; return what, or ``""`` if none ran."""
    if kind == "predictor":
        while process.poll() is None and not any(map(_predicts, bench.processes_left())):
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.2) * whole_s)
    else:
        time.sleep(random.uniform(0.1, 1.0) * whole_s)
    present: dict[str, list[int]] = {"harness": [process.pid]}
    for each in bench.processes_left():
        with contextlib.suppress(psutil.Error):
            name = "predictor" if _predicts(each) else "agent" if each.children() else "rank"
            present.setdefault(name, []).append(each.pid)
    if process.poll() is not None:
        return ""
    kind = kind if kind in present else random.choice([*present])
    number = random.choice((signal.SIGKILL, signal.SIGSTOP))
    with contextlib.suppress(ProcessLookupError):
        os.kill(random.choice(present[kind]), number)
        if number == signal.SIGSTOP and kind == "harness":  # which only its user can continue
            time.sleep(random.uniform(0.1, 1.0))
            process.send_signal(signal.SIGCONT)
        return f"{kind} {number.name}"
    return ""


def _predicts(process: psutil.Process) -> bool:
    """Return whether a process is the predictor server or a predictor, which is its fork."""
    with contextlib.suppress(psutil.Error):
        return any("hybridperf.run.rescore" in word for word in process.cmdline())
    return False


def _is_ours(bench: Bench, process: psutil.Process) -> bool:
    """Return whether a process has anything of the bench open, whatever its environment says."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(str(bench.out) in file.path for file in process.open_files())
    return False
