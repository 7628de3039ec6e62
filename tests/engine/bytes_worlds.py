"""What a rank of a test of projected bytes does: count what it hands to sends and collectives."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]  # no public way
    _resolve_process_group,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

_COUNTS = 4  #: elements of an all-reduce that is of counts of targets, or of a norm
_NORMS = 100  #: elements of an all-reduce that may be of the norms of all tensors

#: by operation: which argument has the whole of what is communicated
_WHOLE = {
    "c10d.send": 0,
    "c10d.allreduce_": 0,
    "c10d.allgather_": 0,
    "c10d._allgather_base_": 0,
    "c10d._reduce_scatter_base_": 1,
    "_c10d_functional.all_reduce": 0,
    "_c10d_functional.all_reduce_": 0,
    "_c10d_functional.all_gather_into_tensor": 0,  # a part, of as many as there are ranks
    "_c10d_functional.reduce_scatter_tensor": 0,
}
#: none of which sends anything that another operation does not, but for samples, which one rank of
#: a tp group may read for all and broadcast
_OTHERS = ("recv", "wait_tensor", "barrier", "_wrap_tensor_autograd", "broadcast")


class CountBytes(TorchDispatchMode):
    """Count the bytes handed to each operation of torch.distributed, by operation and group."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.bytes = Counter[tuple[str, tuple[int, ...]]]()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # so that it makes collectives of it, which are seen here
        name = str(func).rpartition(".")[0]
        if name.partition(".")[0] in {"c10d", "_c10d_functional"}:
            self._count(name, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if any(other in name for other in _OTHERS):
            return
        assert name in _WHOLE, f"{name} is not counted"
        given = args[_WHOLE[name]]
        tensors = list(_tensors(given))
        group = self._group(args)
        elements = sum(tensor.numel() for tensor in tensors)
        adds = name.strip("_").endswith(("allreduce", "all_reduce"))
        if dist.get_world_size(group) == 1 or (adds and elements <= _COUNTS):
            return
        parts = dist.get_world_size(group) if name.endswith("all_gather_into_tensor") else 1
        kind = name.rpartition(".")[2].strip("_")
        if adds and tensors[0].dim() == 2 and len(tensors[0]) == 2:
            kind = "rows"  # two sums of each channel of a BatchNorm; all others are flat
        elif adds and elements <= _NORMS:
            kind = "few"
        self.bytes[kind, _ranks(group)] += parts * sum(t.nbytes for t in tensors)

    def _group(self, args: Any) -> dist.ProcessGroup:
        for each in args:
            if isinstance(each, torch.ScriptObject):
                try:
                    return dist.ProcessGroup.unbox(each)
                except (RuntimeError, TypeError):
                    continue  # a reduction's operator
            if isinstance(each, str):
                try:
                    return _resolve_process_group(each)  # type: ignore[arg-type]  # a name is a str
                except (LookupError, RuntimeError, ValueError):
                    continue
        raise AssertionError(f"no group among {args}")


def _ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    """Return what identifies ``group``: equal meshes may have another one, of the same ranks."""
    return tuple(dist.get_process_group_ranks(group))


def _tensors(given: Any) -> Iterator[Tensor]:
    """Yield the tensors in ``given``: a tensor, or a list of such."""
    if isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)
    else:
        yield given


def count_all(folder: Path, items: Mapping[int, str]) -> None:
    """Train three steps of every item, such as ``vit:dp=2``; save what was counted by number."""
    pairs = {number: item.split(":") for number, item in items.items()}
    with join_ranks(ParallelPlan.parse(next(iter(pairs.values()))[1])) as device:
        for number, (name, text) in pairs.items():
            plan = ParallelPlan.parse(text)
            mesh = mesh_of(plan, device)
            family = dataclasses.replace(FAMILIES[name].of(plan), dtype=torch.float32)
            with closing(Trainer(family.chain(), family.task(), plan, mesh, SEED)) as trainer:
                trainer.warm_up()
                with CountBytes() as counted:
                    trainer.train(family.batches(family.splits()))
                axes = {_ranks(each): name.split()[0] for name, each in mesh.groups.items()}
                found: dict[str, Any] = {
                    "bytes": {
                        f"{kind} {axes.get(ranks, 'all')}": count
                        for (kind, ranks), count in counted.bytes.items()
                    },
                    "sent": trainer.statistics().get("sent"),
                }
            path = folder / f"item_{number}_rank_{os.environ['RANK']}.json"
            path.write_text(json.dumps(found))
            dist.barrier()
