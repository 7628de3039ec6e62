"""Recomputation changes nothing but what is kept for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.batchnorm import apply_batch_norm, commit_statistics
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.parallelize import apply_recompute

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 6


class Centred(nn.Module):
    """Subtract a moving average of all inputs, which each forward pass moves: a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.average: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.average = 0.5 * self.average + 0.5 * inputs.detach().mean(dim=0)
        outputs: Tensor = self.linear(inputs - self.average).tanh()
        return outputs


UNITS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    ),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "moving average": Centred,
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("bn", ["micro", "deferred"])
@pytest.mark.parametrize("build", UNITS.values(), ids=UNITS)
def test_recomputation_keeps_gradients_and_buffers(build: Callable[[], nn.Module], bn: str) -> None:
    found = []
    for every in (0, 1):
        torch.manual_seed(0)
        module = nn.Sequential(build(), nn.Tanh()).train()
        plan = ParallelPlan.parse(f"microbatches=3,bn={bn}")
        unit = Unit("unit", module)
        apply_batch_norm([unit], plan=plan, mesh=Mesh(torch.device("cpu"), None))
        apply_recompute([unit], every=every)
        outputs = [module(torch.randn(4, WIDTH, requires_grad=True)) for _ in range(3)]
        for output in outputs:  # as in a pipeline: backward passes after later forward passes
            output.square().sum().backward()
        commit_statistics(module)
        gradients = [parameter.grad for parameter in module.parameters()]
        found.append([*gradients, *module.state_dict().values(), *module.buffers()])

    for without, recomputed in zip(*found, strict=True):
        assert torch.equal(without, recomputed)
