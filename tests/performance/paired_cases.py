"""What is compared in turn: two plans of ours, or ours and a published trainer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tests.performance.peers import FairscaleOss, TorchGPipe
from tests.performance.work import build_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.performance.peers import Peer
    from tests.performance.work import Work

__all__ = ["CASES", "OF_FAIRSCALE", "OF_PROGRAMS", "OF_TORCHGPIPE", "Case"]


@dataclass(frozen=True)
class Case:
    """One comparison of a plan of ours, which has two ranks."""

    plan: str
    theirs: str | Callable[[Work], Peer]  #: another plan of ours, or a published trainer
    work: Callable[[], Work]
    executes_programs: bool = False  #: by our executor of programs where it would be torch's
    after_an_epoch: Literal["same", "different"] = "same"  #: the weights of the two sides
    most: float | None = None  #: ratio of processor time that is asked for
    pairs: int = 120  #: of epochs; even, so that each side is first as often


_SGD: dict[str, Any] = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "clip_norm": 0.0}
# With a small one, what rounding leaves of gradients that are zero would move weights.
_EPSILON: dict[str, Any] = {"epsilon": 1e-3}
_VIT = partial(build_work, "vit/laptop", steps=12)
_VIT_SGD = partial(_VIT, optimizer=_SGD)
_VGG_SGD = partial(build_work, "vgg/laptop", steps=6, optimizer=_SGD)
_BERT = partial(build_work, "bert/laptop", steps=12)
_RESNET = partial(build_work, "resnet/laptop", steps=12)
_WIDE = {"hidden": 384, "inner": 1536, "heads": 6}  # so that arithmetic outweighs Python
_VIT_WIDE = partial(build_work, "vit/laptop", steps=2, model=_WIDE)
_FAMILIES = {"vit": _VIT, "bert": _BERT, "resnet": _RESNET}

_1F1B_M4, _1F1B_M8 = "pp=2,microbatches=4", "pp=2,microbatches=8"
_DELAYED = f"{_1F1B_M4},staleness=1"
_GPIPE = "pp=2,schedule=gpipe,microbatches=4"

OF_PROGRAMS = {
    **{
        f"{name}-m4-over-torch": Case(_1F1B_M4, _1F1B_M4, work, executes_programs=True, most=1.03)
        for name, work in _FAMILIES.items()
    },
    "vit-m8-over-torch": Case(_1F1B_M8, _1F1B_M8, _VIT, executes_programs=True, most=1.03),
    "vit-no-flush-over-flush": Case(f"{_DELAYED},flush=off", _DELAYED, _VIT),
    "vit-no-flush-over-torch": Case(
        f"{_DELAYED},flush=off", _1F1B_M4, _VIT, after_an_epoch="different"
    ),
    "vit-delayed-over-ddp": Case("dp=2,staleness=1", "dp=2", _VIT, after_an_epoch="different"),
}
OF_TORCHGPIPE = {
    "vit-torchgpipe": Case(_GPIPE, partial(TorchGPipe, microbatches=4), _VIT_SGD),
    "vgg-torchgpipe": Case(_GPIPE, partial(TorchGPipe, microbatches=4), _VGG_SGD),
    "vit-wide-torchgpipe": Case(
        _GPIPE, partial(TorchGPipe, microbatches=4), partial(_VIT_WIDE, optimizer=_SGD), pairs=30
    ),
    "vit-torchgpipe-recompute": Case(
        f"{_GPIPE},recompute=full",
        partial(TorchGPipe, microbatches=4, checkpoint="always"),
        _VIT_SGD,
    ),
}
OF_FAIRSCALE = {
    "vit-oss": Case("dp=2,zero=1", FairscaleOss, partial(_VIT, optimizer=_EPSILON)),
    "bert-oss": Case("dp=2,zero=1", FairscaleOss, partial(_BERT, optimizer=_EPSILON)),
    "vit-wide-oss": Case(
        "dp=2,zero=1", FairscaleOss, partial(_VIT_WIDE, optimizer=_EPSILON), pairs=30
    ),
}
CASES = OF_PROGRAMS | OF_TORCHGPIPE | OF_FAIRSCALE
