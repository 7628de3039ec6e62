"""What a rank of a transparency test does: ``-m tests.engine.worlds <folder> <family:plan>...``.

One world runs all its plans, since starting a rank takes seconds of imports. Each rank leaves, for
every plan, what it has after three steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.engine.mesh import build_mesh, join_ranks
from reference_impls.engine.norms import is_spread
from reference_impls.engine.trainer import Trainer
from suite.plan import ParallelPlan
from suite.runs.access import EvaluationData
from tests.engine.families import FAMILIES, SEED, Family

if TYPE_CHECKING:
    from collections.abc import Iterable


def run_plan(family: Family, plan: ParallelPlan, device: torch.device) -> dict[str, Any]:
    """Train under ``plan`` and return this rank's part of what came of it."""
    splits, mesh = family.splits(), build_mesh(plan, device)
    trainer = Trainer(family.chain(), family.task(), plan, mesh, SEED)
    trainer.warm_up()
    gradients: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in trainer._stage.named_parameters():
            assert parameter.grad is not None
            gradients[name] = whole(parameter.grad)

    trainer._optimizer.register_step_pre_hook(keep)
    trainer.train(family.batches(splits))
    return {
        "gradients": gradients,
        "statistics": trainer.statistics(),
        "quality": trainer.evaluate(EvaluationData(splits.evaluation, on_batch=lambda: None)),
        "weights": {name: value.clone() for name, value in trainer.weights().items()},
    }


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if is_spread(tensor) else tensor).clone()


def run_all(folder: Path, items: Iterable[str]) -> None:
    """Run every item of the command line; they need as many ranks as there are."""
    families, plans = zip(*(item.split(":") for item in items), strict=True)
    parsed = [ParallelPlan.parse(plan) for plan in plans]
    with join_ranks(parsed[0]) as device:
        for number, (family, plan) in enumerate(zip(families, parsed, strict=True)):
            found = run_plan(FAMILIES[family], plan, device)
            torch.save(found, folder / f"item_{number}_rank_{os.environ['RANK']}.pt")
            if dist.is_initialized():
                dist.barrier()


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2:])
