"""Projections know how many bytes compression reads and writes: counted in the trainer's codecs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hybridperf.projection.traffic import GRADIENT_BYTES, LINK_CODEC_BYTES
from hybridperf_reference.engine.gradient_reducer import GRADIENT_AVERAGES
from hybridperf_reference.engine.link import LINK_CODECS, LinkKey

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = (8, 64, 56, 56)
#: operations that read no values of their inputs, or move nothing
_FREE = ("empty", "view", "new_ones", "allreduce")


class _CountedBytes(TorchDispatchMode):
    """Add up the bytes of what every operation reads and writes, views apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.counted = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if not func.is_view and not any(word in func.name() for word in _FREE):
            tensors = [each for each in tree_leaves((args, kwargs, returned)) if _has_bytes(each)]
            if "copy_" in func.name() and "_to_" not in func.name():
                tensors = tensors[1:]  # which is overwritten unread
            self.counted += sum(each.numel() * each.element_size() for each in tensors)
        return returned


def _has_bytes(value: object) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize("name", LINK_CODECS)
def test_link_codecs_read_and_write_as_many_bytes(name: str) -> None:
    codec, values = LINK_CODECS[name], torch.randn(SHAPE)
    with _CountedBytes() as encoding:
        sent = codec.encode(values, LinkKey(1, 2, 3, 4, gradient=False))
    with _CountedBytes() as decoding:
        codec.decode(sent, SHAPE, torch.float32)

    found = [each.counted / math.prod(SHAPE) for each in (encoding, decoding)]
    stated = LINK_CODEC_BYTES[name]
    if name == "topk":
        # A selection reads all values several times, and few of them are read where they are taken.
        assert stated.encoding > found[0] == pytest.approx(92.8, abs=0.1)
        assert stated.decoding < found[1] == pytest.approx(14.4, abs=0.1)
    else:
        assert found == pytest.approx([*stated], abs=0.1)


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """Yield the group of one rank."""
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_averages_read_and_write_as_many_bytes_more_than_in_fp32(alone: dist.ProcessGroup) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1024, 4096)) for _ in range(2)]
    gradients = [torch.randn_like(each) for each in parameters]
    found = {}
    for name, average in GRADIENT_AVERAGES.items():
        with _CountedBytes() as counted:
            one = average(parameters, alone, 1, 0)
            counted.counted = 0
            one.finish(one.start(gradients))
        found[name] = counted.counted / sum(each.numel() for each in parameters)

    more = {name: each - found["fp32"] for name, each in found.items()}
    assert more == pytest.approx(dict(GRADIENT_BYTES), abs=0.5)
