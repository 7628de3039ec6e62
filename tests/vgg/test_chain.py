from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from hybridperf_reference.models import chain_of
from tests.families import (
    assert_names_and_shapes,
    chain_that_gave_weights_to,
    chain_with_weights_of,
    run,
    size_of,
    task_of,
)

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task
    from tests.families import Exchange


def _full(depths: list[int], **numbers: object) -> Task:
    model: dict[str, object] = {
        "channels": 3,
        "image_px": 224,
        "widths": [64, 128, 256, 512, 512],
        "depths": depths,
        "pooled_px": 7,
        "hidden": 4096,
        "dropout": 0.5,
        "classes": 1000,
    }
    blocks = [f"conv{n}.{i}" for n, depth in enumerate(depths, start=1) for i in range(depth)]
    return task_of("vgg/laptop", model | numbers, (*blocks, "fc1", "fc2", "fc3"))


@pytest.mark.parametrize(
    ("depths", "parameters", "gflop"),
    [([2, 2, 3, 3, 3], 138.358, 30.941), ([2, 2, 4, 4, 4], 143.667, 39.264)],
    ids=["VGG-16", "VGG-19"],
)
def test_sizes_are_the_published_ones(depths: list[int], parameters: float, gflop: float) -> None:
    assert size_of(_full(depths)) == (parameters, gflop)


@pytest.mark.parametrize(
    ("depths", "published"), [([2, 2, 3, 3, 3], "vgg16"), ([2, 2, 4, 4, 4], "vgg19")]
)
def test_full_models_have_the_tensors_of_torchvision(depths: list[int], published: str) -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        theirs = getattr(models, published)(init_weights=False)

    assert_names_and_shapes(_full(depths), "torchvision", theirs)


@pytest.mark.parametrize("exchange", [chain_with_weights_of, chain_that_gave_weights_to])
def test_outputs_are_those_of_torchvision(exchange: Exchange) -> None:
    """With the same weights, the chain computes what torchvision's model does, in small."""
    models = pytest.importorskip("torchvision.models.vgg")
    with torch.device("meta"):
        theirs = models.VGG(models.make_layers([8, "M"]), init_weights=False)
    theirs.features = models.make_layers([8, "M", 16, 16, "M"])
    theirs.classifier = nn.Sequential(
        nn.Linear(16 * 49, 32),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(32, 5),
    )
    task = _full([1, 2], widths=[8, 16], hidden=32, classes=5, image_px=32)
    chain = exchange(task, "torchvision", theirs.eval())
    images = torch.randn(2, 3, 32, 32)

    with torch.no_grad():
        expected = theirs(images)

    assert torch.allclose(run(chain, images), expected, rtol=1e-5, atol=1e-5)


def test_the_first_layer_of_the_classifier_is_row_parallel() -> None:
    chain = chain_of(_full([1, 1], widths=[4, 4], hidden=8, pooled_px=2), seed=0)

    assert {unit.name: dict(unit.split) for unit in chain.units if unit.split} == {
        "fc1": {"linear": "row"}
    }
