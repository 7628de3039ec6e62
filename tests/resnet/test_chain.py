from __future__ import annotations

import dataclasses

import pytest
import torch

from reference_impls.engine.stage import Stage
from reference_impls.models import chain_of
from reference_impls.resnet.chain import Bottleneck
from suite.refusal import Refusal
from suite.tasks.registry import find_task

TASK = find_task("resnet/laptop")


def test_the_model_has_the_size_that_the_task_states() -> None:
    stage = Stage(chain_of(TASK, seed=0).units)

    assert sum(parameter.numel() for parameter in stage.parameters()) == 509_306


def test_units_are_those_that_the_task_declares() -> None:
    other = dataclasses.replace(TASK, units=("stem", "head"))

    with pytest.raises(ValueError, match="declares the units"):
        chain_of(other, seed=0)


def test_the_seed_alone_decides_the_weights() -> None:
    first, same, other = (Stage(chain_of(TASK, seed).units).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["stem.conv.weight"], other["stem.conv.weight"])


def test_a_bottleneck_begins_as_its_shortcut() -> None:
    chain = chain_of(TASK, seed=0)

    blocks = [unit.module for unit in chain.units if isinstance(unit.module, Bottleneck)]

    assert len(blocks) == 4
    assert all(not block.bn3.weight.any() for block in blocks)


def test_no_unit_changes_its_input_in_place() -> None:
    chain = chain_of(TASK, seed=0)
    outputs = chain.example(4)

    for unit in chain.units:
        before = outputs.clone()
        following = unit.module(outputs)
        assert torch.equal(outputs, before), unit.name
        outputs = following


def test_boundaries_have_the_shapes_that_come_out() -> None:
    chain = chain_of(TASK, seed=0)

    assert chain.boundary_shapes() == [
        (1, 16, 16),
        (16, 16, 16),
        (64, 16, 16),
        (128, 8, 8),
        (256, 4, 4),
        (512, 2, 2),
        (10,),
    ]


def test_unknown_numbers_of_a_model_are_refused() -> None:
    other = dataclasses.replace(TASK, model=TASK.model | {"depth": 3})

    with pytest.raises(Refusal, match=r"model\.depth"):
        chain_of(other, seed=0)
