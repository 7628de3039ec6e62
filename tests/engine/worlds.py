"""What a rank of a transparency test does.

One world runs all its plans. Each rank leaves, for every plan, what it has after three steps.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Groups, build_mesh, join_ranks
from hybridperf_reference.engine.norms import whole_tensor
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED, Family
from tests.engine.odd_models import ODD, OddModel
from tests.engine.quality import quality_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridperf_reference.engine.mesh import Mesh

MOST_WITH_WORKERS = 2  #: ranks of a plan under which samples are read ahead
_WARMED: set[ParallelPlan] = set()


def mesh_of(plan: ParallelPlan, device: torch.device) -> Mesh:
    """Return the mesh of ``plan``, whose process groups all plans share."""
    return build_mesh(plan, device, _groups())


@functools.cache
def _groups() -> Groups:
    return Groups()


def run_plan(family: Family, plan: ParallelPlan, device: torch.device) -> dict[str, Any]:
    """Train under ``plan`` and return this rank's part of what came of it."""
    splits, mesh = family.splits(), mesh_of(plan, device)
    set_float32_math(tf32=plan.precision == "tf32")
    if plan.compile:
        from torch._inductor import config

        # Compiled dropout draws by torch's generators, as it does where it is not compiled.
        config.fallback_random = family.dropout
    # Workers are forked as slowly as a step is taken; tests of input have them under four ranks.
    in_process = dataclasses.replace(family, reads_ahead=False)
    chain = (family if plan.ranks <= MOST_WITH_WORKERS else in_process).chain()
    with closing(Trainer(chain, family.task(), plan, mesh, SEED)) as trainer:
        # A third of the time, and no number depends on it: one family of each plan is enough.
        if plan not in _WARMED or isinstance(family, OddModel):
            trainer.warm_up()
            _WARMED.add(plan)
        gradients: dict[str, Tensor] = {}
        steps = itertools.count(1)

        def keep(*_: object) -> None:
            if next(steps) < family.steps:
                return  # gathering those that are split takes as long as computing them
            for name, parameter in trainer._stage.named_parameters():
                if parameter.grad is not None:
                    value = whole(parameter.grad)
                    known = gradients.setdefault(trainer._stage.global_name(name), value)
                    assert torch.equal(known, value), f"copies of {name} differ in their gradient"

        trainer._update.optimizer.register_step_pre_hook(keep)
        trainer.train(family.batches(splits))
        return {
            "stages": trainer.partition_entry()[1],
            "gradients": gradients,
            "statistics": trainer.statistics(),
            "quality": quality_of(trainer, splits.evaluation),
            "weights": {name: value.clone() for name, value in trainer.weights().items()},
        }


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of all of ``tensor`` on the processor."""
    return whole_tensor(tensor).to("cpu", copy=True)


def leave(folder: Path, number: int, found: dict[str, Any]) -> None:
    """Write what this rank has after an item, for `compare.found` and `compare.told`.

    What is no tensors stands in a file of its own, which is read in a tenth of the time.
    """
    path = folder / f"item_{number}_rank_{os.environ['RANK']}.pt"
    tensors = {name: value for name, value in found.items() if _are_tensors(value)}
    path.with_suffix(".json").write_text(json.dumps({n: found[n] for n in found.keys() - tensors}))
    torch.save(tensors, path)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values())


def run_all(folder: Path, items: Mapping[int, str]) -> None:
    """Run every item, such as ``vit:dp=2``, by its number; they need as many ranks as there are."""
    families, plans = zip(*(item.split(":") for item in items.values()), strict=True)
    parsed = [ParallelPlan.parse(plan) for plan in plans]
    with join_ranks(parsed[0]) as device:
        for number, family, plan in zip(items, families, parsed, strict=True):
            found = run_plan((FAMILIES | ODD)[family].of(plan), plan, device)
            leave(folder, number, found)
            if dist.is_initialized():
                dist.barrier()
