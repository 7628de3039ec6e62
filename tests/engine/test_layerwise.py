"""LARS and LAMB against an independent implementation, whole and in parts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.optim import build_optimizer
from tests.engine.reference_optimizers import REFERENCES

if TYPE_CHECKING:
    from hybridperf.tasks.task import Optimizer

LARS = dataclasses.replace(
    find_task("resnet/laptop").optimizer, name="lars", lr=2.0, trust_coefficient=0.02
)
LAMB = dataclasses.replace(LARS, name="lamb", lr=0.01, weight_decay=0.1, epsilon=1e-6)
EVERY = [LARS, dataclasses.replace(LARS, nesterov=False, momentum=0.5), LAMB]


class Small(nn.Module):
    """Parameters of one, two and four dimensions; one of them is zero, one gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.linear = nn.Linear(5, 7)
        self.zero = nn.Parameter(torch.zeros(4, 4))
        self.still = nn.Parameter(torch.ones(2, 2))


def gradients(module: nn.Module, step: int) -> dict[str, Tensor]:
    torch.manual_seed(step)
    return {name: torch.randn_like(p) for name, p in module.named_parameters() if name != "still"}


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.name)
def test_five_steps_follow_the_papers_formulas(config: Optimizer) -> None:
    torch.manual_seed(0)
    module = Small().double()
    optimizer = build_optimizer(module, config)
    reference = REFERENCES[config.name](config)
    names = [name for name, _ in module.named_parameters() if name != "still"]
    weights = {name: module.get_parameter(name).detach().numpy().copy() for name in names}

    for step in range(5):
        lr = config.lr / (step + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        drawn = gradients(module, step)
        if step == 3:
            drawn["conv.weight"].zero_()
        for name, gradient in drawn.items():
            module.get_parameter(name).grad = gradient
        optimizer.step()
        reference.step(weights, {name: g.numpy() for name, g in drawn.items()}, lr)

    for name, expected in weights.items():
        np.testing.assert_allclose(module.get_parameter(name).detach(), expected, rtol=1e-12)
    assert torch.equal(module.still, torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.name)
def test_a_step_does_not_change_gradients(config: Optimizer) -> None:
    module = Small()
    drawn = gradients(module, 1)
    for name, gradient in drawn.items():
        module.get_parameter(name).grad = gradient.clone()

    build_optimizer(module, config).step()

    for name, gradient in drawn.items():
        left = module.get_parameter(name).grad
        assert left is not None
        assert torch.equal(left, gradient)
