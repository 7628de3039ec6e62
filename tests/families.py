"""What every family's chain is held to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.parallelize import forward_flops
from hybridperf_reference.interchange import library_model
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain

    Exchange = Callable[[Task, str, nn.Module], Chain]

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


def assert_names_and_shapes(task: Task, form: str, theirs: nn.Module) -> None:
    """What leaves ``task`` has the tensors of the library's model, and what comes back has ours."""
    with torch.device("meta"):
        own = Stage(chain_of(task, seed=0).units).state_dict()
    library = library_model(task, form)
    held = theirs.state_dict()

    exported, back = library.to_library(own), library.to_own(held, own, "theirs")

    assert _shapes(exported) == _shapes(held)
    assert _shapes(back) == _shapes(own)


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def chain_with_weights_of(task: Task, form: str, theirs: nn.Module) -> Chain:
    """Return a chain with the weights of the library's model."""
    chain = chain_of(task, seed=0)
    stage = Stage(chain.units)
    weights = library_model(task, form).to_own(theirs.state_dict(), stage.state_dict(), "theirs")
    stage.load_state_dict(weights, strict=True)
    return chain


def chain_that_gave_weights_to(task: Task, form: str, theirs: nn.Module) -> Chain:
    """Return a chain of random weights, which the library's model has been given."""
    chain = chain_of(task, seed=1)
    stage = Stage(chain.units)
    generator = torch.Generator().manual_seed(1)
    for value in stage.state_dict().values():
        if value.is_floating_point():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.02)
    exported = library_model(task, form).to_library(stage.state_dict())
    theirs.load_state_dict(exported, strict=True)
    return chain


def run(chain: Chain, inputs: torch.Tensor) -> torch.Tensor:
    """Return what the units make of ``inputs``, evaluating."""
    with torch.no_grad():
        for unit in chain.units:
            inputs = unit.module.eval()(inputs)
    return inputs
