"""What a rank computes with a BatchNorm layer under ``dp=2,bn=sync`` in fp32."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.batchnorm import apply_batch_norm
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.mesh import build_mesh, join_ranks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MEANS", "images", "passed", "synchronize"]

MEANS = (100, 1000)
CHANNELS = 3


def images(mean: float) -> Tensor:
    """Return the images [16, channel, 5, 5] of both ranks, of standard deviation 1."""
    noise = torch.randn(16, CHANNELS, 5, 5, generator=torch.Generator().manual_seed(1))
    return noise + mean


def passed(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return what a forward and a backward pass of ``inputs`` through ``module`` compute."""
    inputs = inputs.clone().requires_grad_()
    outputs = module(inputs)
    weights = torch.linspace(-1, 1, inputs.shape[-1], dtype=inputs.dtype)
    (outputs * weights).square().sum().backward()
    assert inputs.grad is not None
    return {"outputs": outputs.detach(), "gradient": inputs.grad} | module.state_dict()


def synchronize(folder: Path) -> None:
    """Normalize this rank's half of the images of each mean, and save what came of it."""
    plan = ParallelPlan(dp=2, bn="sync")
    with join_ranks(plan) as device:
        mesh, found = build_mesh(plan, device), {}
        for mean in MEANS:
            module = nn.Sequential(nn.BatchNorm2d(CHANNELS))
            apply_batch_norm([Unit("unit", module)], plan=plan, mesh=mesh)
            found[mean] = passed(module, images(mean).chunk(2)[mesh.replica])
        torch.save(found, folder / f"rank_{os.environ['RANK']}.pt")
