from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

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


def _full(patch: int, hidden: int, layers: int, heads: int, **numbers: object) -> Task:
    model: dict[str, object] = {
        "channels": 3,
        "image_px": 224,
        "patch_px": patch,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "inner": 4 * hidden,
        "classes": 1000,
    }
    names = [f"layers.{index}" for index in range(layers)]
    return task_of("vit/laptop", model | numbers, ("embeddings", *names, "head"))


@pytest.mark.parametrize(
    ("numbers", "parameters", "gflop"),
    [
        ((32, 768, 12, 12), 88.224, 8.818),
        ((16, 768, 12, 12), 86.568, 35.128),
        ((32, 1024, 24, 16), 306.535, 30.755),
    ],
    ids=["ViT-B/32", "ViT-B/16", "ViT-L/32"],
)
def test_sizes_are_the_published_ones(
    numbers: tuple[int, int, int, int], parameters: float, gflop: float
) -> None:
    assert size_of(_full(*numbers)) == (parameters, gflop)


@pytest.mark.parametrize(
    ("numbers", "published"),
    [
        ((32, 768, 12, 12), "vit_b_32"),
        ((16, 768, 12, 12), "vit_b_16"),
        ((32, 1024, 24, 16), "vit_l_32"),
    ],
)
def test_full_models_have_the_tensors_of_torchvision(
    numbers: tuple[int, int, int, int], published: str
) -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        theirs = getattr(models, published)()

    assert_names_and_shapes(_full(*numbers), "torchvision", theirs)


@pytest.mark.parametrize("exchange", [chain_with_weights_of, chain_that_gave_weights_to])
def test_outputs_are_those_of_torchvision(exchange: Exchange) -> None:
    """With the same weights, the chain computes what torchvision's model does."""
    models = pytest.importorskip("torchvision.models.vision_transformer")
    theirs = models.VisionTransformer(32, 8, 2, 4, 16, 64, num_classes=5).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    task = _full(8, 16, 2, 4, image_px=32, classes=5)
    chain = exchange(task, "torchvision", theirs)
    images = torch.randn(2, 3, 32, 32)

    with torch.no_grad():
        expected = theirs(images)

    assert torch.allclose(run(chain, images), expected, rtol=1e-5, atol=1e-5)
