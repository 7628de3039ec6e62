"""A warm-up takes a real step, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
import torch

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import build_mesh
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.engine.families import FAMILIES, SEED

Name = Literal["sgd", "adamw", "lars", "lamb"]


def trained(family: str, optimizer: Name, plan: str, *, warm: bool) -> dict[str, torch.Tensor]:
    """Return all that one process holds after a block, and what training drew and lost."""
    task, parsed = FAMILIES[family].task(), ParallelPlan.parse(plan)
    facts = dataclasses.replace(task.optimizer, name=optimizer, lr=0.001)
    task = dataclasses.replace(task, optimizer=facts)
    mesh = build_mesh(parsed, torch.device("cpu"))
    trainer = Trainer(chain_of(task, SEED), task, parsed, mesh, SEED)
    trainer._stage.register_buffer("foreign", torch.zeros(()), persistent=False)
    trainer._stage.register_forward_hook(lambda stage, *_: stage.foreign.add_(1) and None)
    random = torch.random.get_rng_state()
    if warm:
        trainer.warm_up()
        assert torch.equal(torch.random.get_rng_state(), random)
    splits = FAMILIES[family].splits()
    trainer.train(TrainingData(splits.train, task, SEED, Block(1, 1), lambda: None))
    tensors = dict(trainer._stage.named_parameters()) | dict(trainer._stage.named_buffers())
    for name, parameter in trainer._stage.named_parameters():
        state = trainer._update.optimizer.state[parameter]
        tensors |= {f"{name} {key}": value for key, value in state.items()}
    scale = trainer._update.scale
    statistics = trainer.statistics()
    numbers = (scale.factor, scale.good_steps, statistics["loss"], statistics["gradient_norm"])
    return tensors | {"numbers": torch.tensor(numbers, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("family", "optimizer", "plan"),
    [
        ("resnet", "sgd", "dp=1"),
        ("resnet", "lars", "microbatches=2"),
        ("vit", "adamw", "dp=1"),
        ("vit", "lamb", "precision=bf16"),
        ("resnet", "sgd", "precision=fp16"),
    ],
)
def test_training_after_a_warm_up_is_bit_by_bit_what_it_is_without(
    family: str, optimizer: Name, plan: str
) -> None:
    cold = trained(family, optimizer, plan, warm=False)

    warm = trained(family, optimizer, plan, warm=True)

    assert warm.keys() == cold.keys()
    for name, value in cold.items():
        assert torch.equal(warm[name], value), name


def test_a_warm_up_has_the_optimiser_take_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["vit"]
    plan = ParallelPlan()
    mesh = build_mesh(plan, torch.device("cpu"))
    trainer = Trainer(chain_of(family.task(), SEED), family.task(), plan, mesh, SEED)
    steps = []
    trainer._update.optimizer.register_step_post_hook(lambda *_: steps.append(1))

    trainer.warm_up()

    assert steps == [1]
