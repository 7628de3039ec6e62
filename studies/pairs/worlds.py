"""What a rank does to time plans: ``-m studies.pairs.worlds FILE FOLDER``.

The file is JSON: a task, plans, how often each is timed, in turn, and after how many turns the
profile is measured anew. Each rank leaves the seconds of a step by plan; the first one leaves the
profiles, too. All are of the same processes: one may be a third slower than another with the same
work for as long as it lives.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.run.profiles import profiled_microbatches
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import Groups, build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from hybridperf_reference.profile import profile_on
from tests.performance.work import SEED, Work, build_work

if TYPE_CHECKING:
    from hybridperf_reference.engine.mesh import Mesh

_PROFILE_STEPS: Final = 15
_STEPS: Final = 14
_FIRST: Final = 3  # step of those that is measured first: a delayed plan is steady then


class _Side:
    """A trainer under one plan."""

    def __init__(self, work: Work, plan: ParallelPlan, mesh: Mesh) -> None:
        self._work, self._epoch = work, 0
        self._trainer = Trainer(chain_of(work.task, SEED), work.task, plan, mesh, SEED)
        self._trainer.warm_up()

    def step_s(self) -> float:
        """Train some steps, and return the mean seconds from one's beginning to the next."""
        self._epoch += 1
        begins_s: list[float] = []
        data = TrainingData(
            self._work.samples,
            self._work.task,
            SEED,
            Block(self._epoch, 1),
            lambda: begins_s.append(time.perf_counter()),
        )
        gc.collect()
        dist.barrier()
        self._trainer.train(data)
        dist.barrier()
        return (begins_s[-1] - begins_s[_FIRST]) / (len(begins_s) - 1 - _FIRST)


def time_plans(file: Path, folder: Path) -> None:
    """Time the plans that ``file`` names, and measure profiles between."""
    asked = json.loads(file.read_text())
    torch.set_num_threads(1)
    plans = {text: ParallelPlan.parse(text) for text in asked["plans"]}
    work, task = build_work(asked["task"], steps=_STEPS), find_task(asked["task"])
    profiles = []
    seconds: dict[str, list[float]] = {text: [] for text in plans}
    with join_ranks(next(iter(plans.values()))) as device:
        groups = Groups()
        sides = {
            text: _Side(work, plan, build_mesh(plan, device, groups))
            for text, plan in plans.items()
        }
        for turn in range(asked["turns"] + 1):
            for text in sorted(sides, reverse=turn % 2 == 1):
                step_s = sides[text].step_s()
                if turn:  # the first one warms up
                    seconds[text].append(step_s)
            if turn % asked["turns_of_profile"] == 0 and turn < asked["turns"]:
                sizes = profiled_microbatches(task)
                profiles.append(profile_on(device, task, "fp32", sizes, _PROFILE_STEPS))
    left = {
        "step_s": seconds,
        "profiles": [profile.as_table() for profile in profiles if profile is not None],
    }
    (folder / f"rank_{os.environ['RANK']}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    time_plans(Path(sys.argv[1]), Path(sys.argv[2]))
