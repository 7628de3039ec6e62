"""The laws that the chain of every family keeps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of
from tests.families import LAPTOP

if TYPE_CHECKING:
    from hybridperf_reference.engine.chain import Objective

FAMILIES = pytest.mark.parametrize("name", LAPTOP)


@FAMILIES
def test_the_weights_depend_on_the_seed_only(name: str) -> None:
    task = find_task(name)

    first, same, other = (Stage(chain_of(task, seed).units).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@FAMILIES
def test_no_unit_changes_its_input_in_place(name: str) -> None:
    chain = chain_of(find_task(name), seed=0)
    outputs, _ = chain.example(4)

    for unit in chain.units:
        before = outputs.clone()
        following = unit.module(outputs)
        assert torch.equal(outputs, before), unit.name
        assert not any(getattr(module, "inplace", False) for module in unit.module.modules())
        outputs = following


@FAMILIES
def test_boundaries_have_the_shapes_and_types_of_outputs(name: str) -> None:
    chain = chain_of(find_task(name), seed=0)
    outputs, _ = chain.example(3)

    boundaries = chain.probe().boundaries

    for unit, before in zip(chain.units, boundaries, strict=False):
        assert (outputs.shape[1:], outputs.dtype) == (before.shape, before.dtype), unit.name
        outputs = unit.module(outputs)
    assert (outputs.shape[1:], outputs.dtype) == (boundaries[-1].shape, boundaries[-1].dtype)


@FAMILIES
def test_layers_to_split_are_linear(name: str) -> None:
    for unit in chain_of(find_task(name), seed=0).units:
        for linear in unit.split:
            assert isinstance(unit.module.get_submodule(linear), nn.Linear)


@FAMILIES
def test_the_task_declares_what_its_chain_allows_plans_to_split(name: str) -> None:
    task = find_task(name)
    chain, declared = chain_of(task, seed=0), task.parallel
    modules = [module for unit in chain.units for module in unit.module.modules()]
    parameters = [parameter for unit in chain.units for parameter in unit.module.parameters()]
    sizes = {
        # Features of heads are split where heads are: between two of them.
        task.model["heads"] if linear == "attention.out" else _inputs(unit.module, linear)
        for unit in chain.units
        for linear, kind in unit.split.items()
        if kind == "row"
    }
    tokens = {
        before.shape[0]
        for unit, before in zip(chain.units, chain.probe().boundaries, strict=False)
        if unit.shares_tokens
    }

    assert set(declared.tensor_sizes) == sizes
    assert ({declared.tokens} - {None}) == tokens
    assert declared.batch_norm == any(isinstance(module, nn.BatchNorm2d) for module in modules)
    assert declared.tied == (len(set(parameters)) < len(parameters))


def _inputs(module: nn.Module, linear: str) -> int:
    found = module.get_submodule(linear)
    assert isinstance(found, nn.Linear)
    return found.in_features


@FAMILIES
def test_the_loss_of_a_batch_is_the_sum_over_its_parts(name: str) -> None:
    task = find_task(name)
    chain, samples = chain_of(task, seed=0), load(task.data).train
    objective = chain.objective
    which = samples, torch.arange(8).numpy(), 1, 1
    inputs, targets = objective.prepare(*objective.read(*which)), objective.targets(*which)

    def loss(first: int, last: int) -> torch.Tensor:
        outputs = inputs[first:last]
        for unit in chain.units:
            outputs = unit.module.eval()(outputs)
        return objective.loss(outputs, targets[first:last])

    with torch.no_grad():
        parts = torch.stack([loss(first, first + 2) for first in range(0, 8, 2)])
        assert torch.allclose(parts.sum(), loss(0, 8), rtol=1e-6)
    counts = [torch.as_tensor(objective.count(part)) for part in targets.split(2)]
    assert torch.equal(torch.stack(counts).sum(0), torch.as_tensor(objective.count(targets)))


@FAMILIES
def test_every_plan_reads_the_same_samples(name: str) -> None:
    """A sample does not depend on the batch it is read in, nor on what was read before."""
    task = find_task(name)
    samples, order = load(task.data).train, torch.randperm(100).numpy()
    whole, halves, other = (chain_of(task, seed=0).objective for _ in range(3))

    together = _read(whole, samples, order, 3, 2)
    _read(halves, samples, order, 3, 1)
    apart = [_read(halves, samples, part, 3, 2) for part in (order[:37], order[37:])]

    for part, pieces in zip(together, zip(*apart, strict=True), strict=True):
        assert torch.equal(part, torch.cat(pieces))
    for seed, epoch in ((3, 3), (4, 2)):
        again = _read(other, samples, order, seed, epoch)
        assert not all(map(torch.equal, together, again))


@FAMILIES
def test_targets_do_not_depend_on_whether_inputs_are_read(name: str) -> None:
    task = find_task(name)
    which = load(task.data).train, torch.arange(20).numpy(), 3, 2
    both, alone = (chain_of(task, seed=0).objective for _ in range(2))

    *_, expected = _read(both, *which)

    assert torch.equal(alone.targets(*which), expected)


def _read(objective: Objective, *which: Any) -> tuple[torch.Tensor, ...]:
    """Return all that is read of samples: for inputs, and then the targets."""
    return *objective.read(*which), objective.targets(*which)


@FAMILIES
def test_predictions_have_the_shape_of_the_labels(name: str) -> None:
    task = find_task(name)
    chain, held_out = chain_of(task, seed=0), load(task.data).evaluation
    outputs = chain.objective.evaluation(held_out.inputs[:5])

    with torch.no_grad():
        for unit in chain.units:
            outputs = unit.module.eval()(outputs)

    assert chain.objective.predictions(outputs).shape == held_out.labels[:5].shape


def test_an_unknown_family_is_refused_by_name() -> None:
    task = dataclasses.replace(find_task("vit/laptop"), name="gpt/laptop")

    with pytest.raises(ValueError, match="no model family 'gpt'"):
        chain_of(task, seed=0)
