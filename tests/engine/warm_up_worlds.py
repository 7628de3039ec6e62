"""Training with and without a warm-up, under any plan."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.norms import is_dtensor
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Optimizer", "train_cold_and_warm", "trained"]

Optimizer = Literal["sgd", "adamw", "lars", "lamb"]


def trained(
    family: str, optimizer: Optimizer, plan: str, device: torch.device, *, warm: bool
) -> dict[str, Tensor]:
    """Return all that this rank holds after a block, and what training drew and lost."""
    parsed = ParallelPlan.parse(plan)
    row = dataclasses.replace(FAMILIES[family].of(parsed), dtype=torch.float32)
    task = row.task()
    config = dataclasses.replace(task.optimizer, name=optimizer, lr=0.001)
    task = dataclasses.replace(task, optimizer=config)
    mesh = mesh_of(parsed, device)
    with closing(Trainer(row.chain(), task, parsed, mesh, SEED)) as trainer:
        return _held(
            trainer,
            TrainingData(row.splits().train, task, SEED, Block(1, 1), lambda: None),
            warm=warm,
        )


def _held(trainer: Trainer, batches: TrainingData, *, warm: bool) -> dict[str, Tensor]:
    first = trainer._part.units[0].module
    first.register_buffer("passes", torch.zeros(()), persistent=False)
    first.register_forward_hook(_count_pass)
    random = torch.random.get_rng_state()
    if warm:
        trainer.warm_up()
        assert torch.equal(torch.random.get_rng_state(), random)
    trainer.train(batches)
    tensors = dict(trainer._stage.named_parameters()) | dict(trainer._stage.named_buffers())
    for name, parameter in trainer._stage.named_parameters():
        state = trainer._update.optimizer.state[parameter]
        tensors |= {f"{name} {key}": value for key, value in state.items()}
    scale, statistics = trainer._update.scale, trainer.statistics()
    numbers = (scale.factor, scale.good_steps, statistics["loss"], statistics["gradient_norm"])
    tensors["numbers"] = torch.tensor(numbers, dtype=torch.float64)
    tensors["random"] = torch.random.get_rng_state()
    return {
        name: (value.to_local() if is_dtensor(value) else value).detach()
        for name, value in tensors.items()
    }


def train_cold_and_warm(folder: Path, items: Iterable[tuple[str, Optimizer, str]]) -> None:
    """Train each of ``items`` (family, optimizer, plan) twice, and save what both runs hold."""
    items = list(items)
    with join_ranks(ParallelPlan.parse(items[0][2])) as device:
        found: list[Any] = [
            [trained(*item, device, warm=warm) for warm in (False, True)] for item in items
        ]
    torch.save(found, folder / f"rank_{os.environ['RANK']}.pt")


def _count_pass(module: nn.Module, *_: object) -> None:
    passes = module.get_buffer("passes")
    if module.training:
        passes.add_(1)
