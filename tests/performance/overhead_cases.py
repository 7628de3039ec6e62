"""The comparisons: what our trainer does under a plan, against what somebody else's loop does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.performance import handwritten
from tests.performance.work import build_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.performance.pairing import Side
    from tests.performance.work import Work

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """One comparison."""

    plan: str
    work: Callable[[], Work]
    theirs: Callable[[Work], Side]
    least: float = 0.97  #: ratio of throughput that is asked for
    pairs: int = 30  #: of epochs; even, so that each side is first as often


def _transformers(work: Work) -> Side:
    # Imported where it is needed: not everybody has transformers' own needs.
    from tests.performance.transformers_trainer import TransformersTrainer

    return TransformersTrainer(work, epochs=Case.pairs + 1)


_RESNET = partial(build_work, "resnet/laptop", steps=6)
_VIT = partial(build_work, "vit/laptop", steps=12)
_PUBLISHED_BERT = partial(
    build_work,
    "bert/laptop",
    steps=6,
    model={"norm_first": False},
    optimizer={"schedule": "constant", "warmup_epochs": 0, "clip_norm": 1.0},
)
_RESNET_18 = partial(
    build_work,
    "resnet/workstation",
    batch=8,
    steps=1,
    model={"stem": "large", "image_px": 224},  # as torchvision's reference script trains it
)
_RESNET_50 = partial(
    build_work, "resnet/workstation", batch=4, steps=2, model_of="resnet50/cluster"
)  # at 224 px, on noise

_OF_RANKS = 300  # pairs: epochs of two ranks on two cores vary by a tenth

CASES = {
    "resnet-single": Case("dp=1", _RESNET, handwritten.single),
    "resnet50-single": Case("dp=1", _RESNET_50, handwritten.single, pairs=12),
    "vit-single": Case("dp=1", _VIT, handwritten.single),
    "vit-ddp": Case("dp=2", _VIT, handwritten.ddp, pairs=_OF_RANKS),
    "vit-1f1b": Case(
        "pp=2,microbatches=4",
        _VIT,
        partial(handwritten.Pipeline, cut=3, microbatches=4),
        pairs=_OF_RANKS,
    ),
    "vit-fsdp2": Case("dp=2,zero=3", _VIT, handwritten.fsdp2),
    "bert-transformers": Case("dp=1", _PUBLISHED_BERT, _transformers, least=1.0),
    "resnet18-torchvision": Case(
        "dp=1", _RESNET_18, partial(handwritten.torchvision_loop, tuned=False), least=1.0
    ),
    "resnet18-torchvision-tuned": Case(
        "dp=1", _RESNET_18, partial(handwritten.torchvision_loop, tuned=True)
    ),
}
