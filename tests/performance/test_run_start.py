"""Processor time of runs of one epoch, beside that of an earlier version of this project.

``HYBRIDPERF_BASELINE`` names the ``hybridperf`` command of the other version, in an environment of
its own, and ``HYBRIDPERF_BASELINE_TASK`` its file of ``resnet/laptop``. Both train one epoch on one
core, a fraction of a second on the clock, so nearly all is what starting, scoring and sealing take.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridperf.tasks.registry import task_path

PAIRS = 5
BASELINE = os.environ.get("HYBRIDPERF_BASELINE")
BASELINE_TASK = os.environ.get("HYBRIDPERF_BASELINE_TASK", "")
OURS = str(Path(sys.executable).with_name("hybridperf"))


@pytest.mark.skipif(
    not BASELINE or not BASELINE_TASK, reason="HYBRIDPERF_BASELINE names no other version"
)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("plan", "runs"), [("dp=1", 1), ("dp=2", 1), ("dp=1", 5)])
def test_processor_time_of_a_run_set(plan: str, runs: int, tmp_path: Path, benchmark: Any) -> None:
    assert BASELINE is not None
    ratios: list[float] = []
    ours_s: list[float] = []
    for command in (OURS, BASELINE):
        _processor_s(command, plan, runs, tmp_path / "warm")  # compiles Python's files

    def pair() -> None:
        order = (OURS, BASELINE) if len(ratios) % 2 else (BASELINE, OURS)
        taken = {command: _processor_s(command, plan, runs, tmp_path / "run") for command in order}
        ours_s.append(taken[OURS])
        ratios.append(taken[OURS] / taken[str(BASELINE)])

    benchmark.pedantic(pair, rounds=PAIRS, iterations=1)

    benchmark.extra_info["processor seconds, median"] = round(statistics.median(ours_s), 2)
    benchmark.extra_info["ratio to the other version, median"] = round(statistics.median(ratios), 3)
    benchmark.extra_info["ratios"] = [round(ratio, 3) for ratio in ratios]


def _processor_s(command: str, plan: str, runs: int, out: Path) -> float:
    """Return the user and system seconds of the runs and all its processes."""
    shutil.rmtree(out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    laptop = task_path("resnet/laptop") if command == OURS else Path(BASELINE_TASK)
    task = out.with_suffix(".toml")
    task.write_text(_of_one_epoch(laptop.read_text()))
    arguments = ["run", str(task), "--plan", plan, "--runs", str(runs), "--out", str(out)]
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]  # more spin while they wait
    done = subprocess.run(
        [*one_core, command, *arguments], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in {0, 1}, done.stderr  # 1: missed its target
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _of_one_epoch(task: str) -> str:
    for pattern, replacement in (
        ('name = "resnet/laptop"', 'name = "resnet/short"'),
        (r"epochs = \d+", "epochs = 1"),
        (r"target = .*", "target = 0.01"),
    ):
        task, count = re.subn(f"(?m)^{pattern}$", replacement, task)
        assert count == 1
    return task
