"""What a rank of a comparison does: ``-m tests.performance.overhead_worlds <case> <folder>``.

Both sides live in the same processes. Each rank leaves what `take_turns` found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.overhead_cases import CASES
from tests.performance.pairing import take_turns
from tests.performance.work import SEED

if TYPE_CHECKING:
    from tests.performance.work import Work


class Ours:
    """The trainer, as the harness uses it between two evaluations."""

    def __init__(self, work: Work, plan: ParallelPlan, device: torch.device) -> None:
        chain, mesh = chain_of(work.task, SEED), build_mesh(plan, device)
        self._work = work
        self._trainer = Trainer(chain, work.task, plan, mesh, SEED)
        self._trainer.warm_up()

    def train_epoch(self, epoch: int) -> None:
        """Train through ``epoch``."""
        self._trainer.train(self._work.epoch(epoch))

    def mean_loss(self) -> float:
        """Return the mean over all replicas."""
        loss = self._trainer.statistics()["loss"]
        assert isinstance(loss, float)
        return loss


def compare(name: str, folder: Path) -> None:
    """Time both sides of the case ``name``."""
    case = CASES[name]
    torch.set_num_threads(1)
    plan, work = ParallelPlan.parse(case.plan), case.work()
    with join_ranks(plan) as device:
        found = take_turns(
            Ours(work, plan, device),
            case.theirs(work),
            pairs=case.pairs,
            meet=_meet,
        )
    rank = os.environ.get("RANK", "0")
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    compare(sys.argv[1], Path(sys.argv[2]))
