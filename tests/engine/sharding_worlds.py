"""What a rank gathers, holds and computes under FSDP2."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name
from torch.utils._pytree import tree_leaves

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.norms import is_dtensor
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED
from tests.engine.odd_models import ODD
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["MODELS", "PLANS", "measure_weights", "train_each"]

MODELS = {
    "vit": FAMILIES["vit"],
    "activated": dataclasses.replace(ODD["activated"], dtype=torch.float32),
}
PLANS = (
    "dp=2,sync=blocking,precision=bf16",
    "dp=2,zero=1,precision=bf16",
    "dp=2,zero=3,precision=bf16",
    "dp=2,zero=3,precision=bf16,recompute=full",
    "dp=2,zero=3",
)


class AllGathers(TorchDispatchMode):
    """Count the bytes that all-gathers return, by data type."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch states no type
        self.bytes = dict[str, int]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.c10d._allgather_base_.default:
            whole: Tensor = args[0]
            name = str(whole.dtype).removeprefix("torch.")
            self.bytes[name] = self.bytes.get(name, 0) + whole.nbytes
        return func(*args, **kwargs or {})


def train_each(folder: Path) -> None:
    """Train each model under each plan, and save weights and bytes gathered."""
    found = {}
    with join_ranks(ParallelPlan.parse(PLANS[0])) as device:
        for name, model in MODELS.items():
            for text in PLANS:
                plan = ParallelPlan.parse(text)
                family = model.of(plan)
                mesh = mesh_of(plan, device)
                trainer = Trainer(family.chain(), family.task(), plan, mesh, SEED)
                trainer.warm_up()
                with AllGathers() as gathers:
                    trainer.train(family.batches(family.splits()))
                found[name, text] = (trainer.weights(), gathers.bytes, trainer.statistics())
    torch.save(found, folder / f"rank_{os.environ['RANK']}.pt")


class LiveBytes(TorchDispatchMode):
    """Record the most bytes of new tensors that are alive at once, other than on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch states no type
        self.peak = 0
        self._alive = dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that this sees the operations on its local tensors
        before = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_plain(leaf)}
        outputs = func(*args, **kwargs or {})
        for leaf in tree_leaves(outputs):
            if _is_plain(leaf) and _storage(leaf) not in before:
                storage = leaf.untyped_storage()
                self._alive[_storage(leaf)] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return outputs


def _to_host(tensor: Tensor) -> Tensor:
    """Copy ``tensor`` without counting the copy, in place of `Tensor.cpu`."""
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.clone()


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and not is_dtensor(value)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def measure_weights(folder: Path) -> None:
    """Save the peak bytes of `Trainer.weights` under ``zero=3``, and the size of each weight."""
    plan = ParallelPlan.parse("dp=2,zero=3")
    with join_ranks(plan) as device, pytest.MonkeyPatch.context() as patch:
        family = FAMILIES["vit"]
        mesh = mesh_of(plan, device)
        trainer = Trainer(family.chain(), family.task(), plan, mesh, SEED)
        trainer.warm_up()
        counted = LiveBytes()
        patch.setattr(Tensor, "cpu", _to_host)
        with counted:
            weights = trainer.weights()
    sizes = [value.nbytes for value in weights.values()]
    torch.save((counted.peak, sizes), folder / f"rank_{os.environ['RANK']}.pt")
