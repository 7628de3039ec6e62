"""What a rank does to time plans: ``-m tests.performance.projection_worlds FILE FOLDER``.

The file is JSON: a task, plans, and how often each is timed, in turn. Each rank leaves the seconds
of a step by plan.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED, Work, build_work

_STEPS: Final = 14
_FIRST: Final = 3  # step of those that is measured first: a delayed plan is steady then


class _Side:
    """A trainer under one plan."""

    def __init__(self, work: Work, plan: ParallelPlan, device: torch.device) -> None:
        self._work, self._epoch = work, 0
        mesh = build_mesh(plan, device)
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
    """Time the plans that ``file`` names."""
    asked = json.loads(file.read_text())
    torch.set_num_threads(1)
    plans = {text: ParallelPlan.parse(text) for text in asked["plans"]}
    work = build_work(asked["task"], steps=_STEPS)
    with join_ranks(next(iter(plans.values()))) as device:
        sides = {text: _Side(work, plan, device) for text, plan in plans.items()}
        seconds: dict[str, list[float]] = {text: [] for text in plans}
        for turn in range(asked["turns"] + 1):
            for text in sorted(sides, reverse=turn % 2 == 1):
                step_s = sides[text].step_s()
                if turn:  # the first one warms up
                    seconds[text].append(step_s)
    rank = os.environ["RANK"]
    (folder / f"rank_{rank}.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    time_plans(Path(sys.argv[1]), Path(sys.argv[2]))
