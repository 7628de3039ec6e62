from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of
from tests.families import run, size_of, task_of

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task


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


def test_outputs_are_those_of_torchvision() -> None:
    """With its weights, the chain computes what torchvision's model does."""
    models = pytest.importorskip("torchvision.models.vision_transformer")
    theirs = models.VisionTransformer(32, 8, 2, 4, 16, 64, num_classes=5).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    chain = chain_of(_full(8, 16, 2, 4, image_px=32, classes=5), seed=0)
    Stage(chain.units).load_state_dict(_renamed(theirs.state_dict()), strict=True)
    images = torch.randn(2, 3, 32, 32)

    with torch.no_grad():
        expected = theirs(images)

    assert torch.allclose(run(chain, images), expected, rtol=1e-4, atol=1e-5)


def _renamed(theirs: dict[str, Any]) -> dict[str, Any]:
    """Return torchvision's weights by the chain's names."""
    names = {
        "class_token": "embeddings.class_token",
        "conv_proj": "embeddings.patches",
        "encoder.pos_embedding": "embeddings.positions",
        "encoder.ln.": "head.norm.",
        "heads.head": "head.fc",
        "encoder.layers.encoder_layer_": "layers.",
        "ln_1": "attention_norm",
        "ln_2": "mlp_norm",
        "self_attention.out_proj": "attention.out",
        "mlp.0": "mlp.inner",
        "mlp.3": "mlp.outer",
    }
    ours = {}
    for key, value in theirs.items():
        for old, new in names.items():
            key = key.replace(old, new)
        before, packed, kind = key.partition("self_attention.in_proj_")
        if packed:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                ours[f"{before}attention.{part}.{kind}"] = piece
        else:
            ours[key] = value
    return ours
