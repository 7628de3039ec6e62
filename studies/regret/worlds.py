"""What a rank does to time plans in turn: ``-m studies.regret.worlds <file> <folder>``.

The file is JSON: a task, plans, how often each is timed and over how many steps. Each rank leaves
the seconds of a step by plan.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Groups, build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED, Work, build_work

if TYPE_CHECKING:
    from hybridperf_reference.engine.mesh import Mesh


class Trained:
    """A plan's trainer, and its process groups."""

    def __init__(self, work: Work, steps: int, plan: ParallelPlan, mesh: Mesh) -> None:
        self._work, self._steps, self._epoch = work, steps, 0
        self._trainer = Trainer(chain_of(work.task, SEED), work.task, plan, mesh, SEED)
        self._trainer.warm_up()
        self.step_s()

    def step_s(self) -> float:
        """Train some steps and return the seconds of one, until all ranks are done."""
        self._epoch += 1
        data = self._work.epoch(self._epoch)
        dist.barrier()
        start = time.perf_counter()
        self._trainer.train(data)
        dist.barrier()
        return (time.perf_counter() - start) / self._steps

    def close(self) -> None:
        """End its worker processes."""
        self._trainer.close()


def time_plans(file: Path, folder: Path) -> None:
    """Time the plans that ``file`` names: all at once in turn, or one after another."""
    asked = json.loads(file.read_text())
    torch.set_num_threads(1)
    plans = {text: ParallelPlan.parse(text) for text in asked["plans"]}
    steps: int = asked["steps"]
    work = build_work(asked["task"], steps=steps)
    seconds: dict[str, list[float]] = {text: [] for text in plans}
    with join_ranks(next(iter(plans.values()))) as device:
        groups = Groups()
        if asked["in_turn"]:
            trained = {
                text: Trained(work, steps, plan, build_mesh(plan, device, groups))
                for text, plan in plans.items()
            }
            for turn in range(asked["times"]):
                for text in sorted(trained, reverse=turn % 2 == 1):
                    seconds[text].append(trained[text].step_s())
        else:
            for text, plan in plans.items():
                one = Trained(work, steps, plan, build_mesh(plan, device, groups))
                seconds[text] = [one.step_s() for _ in range(asked["times"])]
                one.close()
                del one
                gc.collect()
    rank = os.environ["RANK"]
    (folder / f"rank_{rank}.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    time_plans(Path(sys.argv[1]), Path(sys.argv[2]))
