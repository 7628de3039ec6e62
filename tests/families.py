"""What every family's chain is held to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.parallelize import forward_flops
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain

LAPTOP = ("resnet/laptop", "vgg/laptop", "vit/laptop", "bert/laptop")


def task_of(name: str, model: dict[str, object], units: tuple[str, ...]) -> Task:
    """Return the laptop task of a family with other numbers in its model."""
    return dataclasses.replace(find_task(name), model=model, units=units)


def size_of(task: Task) -> tuple[float, float]:
    """Return parameters in millions and forward GFLOP a sample, without allocating the model."""
    with torch.device("meta"):
        chain = chain_of(task, seed=0)
    parameters = {p for unit in chain.units for p in unit.module.parameters()}
    count = sum(parameter.numel() for parameter in parameters)
    return round(count / 1e6, 3), round(sum(forward_flops(chain.probe())) / 1e9, 3)


def run(chain: Chain, inputs: torch.Tensor) -> torch.Tensor:
    """Return what the units make of ``inputs``, evaluating."""
    with torch.no_grad():
        for unit in chain.units:
            inputs = unit.module.eval()(inputs)
    return inputs
