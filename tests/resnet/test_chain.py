from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hybridperf.errors import UserError
from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of
from hybridperf_reference.resnet.chain import Bottleneck
from tests.families import (
    assert_names_and_shapes,
    chain_that_gave_weights_to,
    chain_with_weights_of,
    run,
    size_of,
    task_of,
)

if TYPE_CHECKING:
    from tests.families import Exchange

TASK = find_task("resnet/laptop")


def _full(depths: list[int], block: str, **numbers: object) -> Any:
    model: dict[str, object] = {
        "channels": 3,
        "image_px": 224,
        "width": 64,
        "depths": depths,
        "expansion": {"basic": 1, "bottleneck": 4}[block],
        "classes": 1000,
        "block": block,
        "stem": "large",
    }
    layers = [f"layer{n}.{i}" for n, depth in enumerate(depths, start=1) for i in range(depth)]
    return task_of("resnet/laptop", model | numbers, ("stem", *layers, "head"))


@pytest.mark.parametrize(
    ("depths", "block", "parameters", "gflop"),
    [
        ([2, 2, 2, 2], "basic", 11.690, 3.628),
        ([3, 4, 6, 3], "bottleneck", 25.557, 8.178),
        ([3, 8, 36, 3], "bottleneck", 60.193, 23.027),
    ],
    ids=["ResNet-18", "ResNet-50", "ResNet-152"],
)
def test_sizes_are_the_published_ones(
    depths: list[int], block: str, parameters: float, gflop: float
) -> None:
    assert size_of(_full(depths, block)) == (parameters, gflop)


@pytest.mark.parametrize(
    ("name", "published"), [("resnet50/cluster", "resnet50"), ("resnet152/cluster", "resnet152")]
)
def test_models_of_the_tasks_have_the_tensors_of_torchvision(name: str, published: str) -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        theirs = getattr(models, published)()

    assert_names_and_shapes(find_task(name), "torchvision", theirs)


@pytest.mark.parametrize("exchange", [chain_with_weights_of, chain_that_gave_weights_to])
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_outputs_are_those_of_torchvision(block: str, exchange: Exchange) -> None:
    """With the same weights, the chain computes what torchvision's model does."""
    models = pytest.importorskip("torchvision.models.resnet")
    kind = {"basic": models.BasicBlock, "bottleneck": models.Bottleneck}[block]
    theirs = models.ResNet(kind, [2, 1, 1, 1], num_classes=7).eval()
    task = _full([2, 1, 1, 1], block, image_px=64, classes=7)
    chain = exchange(task, "torchvision", theirs)
    images = torch.randn(2, 3, 64, 64)

    with torch.no_grad():
        expected = theirs(images)

    assert torch.allclose(run(chain, images), expected, rtol=1e-5, atol=1e-5)


def test_the_laptop_model_has_the_stated_size() -> None:
    stage = Stage(chain_of(TASK, seed=0).units)

    assert sum(parameter.numel() for parameter in stage.parameters()) == 509_306


def test_units_are_those_of_the_task() -> None:
    other = dataclasses.replace(TASK, units=("stem", "head"))

    with pytest.raises(ValueError, match="declares the units"):
        chain_of(other, seed=0)


def test_a_bottleneck_is_initialized_as_its_shortcut() -> None:
    chain = chain_of(TASK, seed=0)

    blocks = [unit.module for unit in chain.units if isinstance(unit.module, Bottleneck)]

    assert len(blocks) == 4
    assert all(not block.bn3.weight.any() for block in blocks)


def test_boundaries_have_the_shapes_of_outputs() -> None:
    chain = chain_of(TASK, seed=0)

    assert [tuple(sample.shape) for sample in chain.probe().boundaries] == [
        (1, 16, 16),
        (16, 16, 16),
        (64, 16, 16),
        (128, 8, 8),
        (256, 4, 4),
        (512, 2, 2),
        (10,),
    ]


def test_unknown_keys_of_a_model_are_refused() -> None:
    other = dataclasses.replace(TASK, model=TASK.model | {"depth": 3})

    with pytest.raises(UserError, match=r"model\.depth"):
        chain_of(other, seed=0)
