"""Measure all-reduces over several nodes: ``-m hybridperf_reference.all_reduce``.

Every rank runs it, under torchrun or the harness's launcher; rank 0 prints a JSON object. Bytes are
those that the network adapters of a node have sent, whatever program sent them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from hybridperf.system.host import network_sent_bytes
from hybridperf_reference.engine.mesh import local_device, wait_for_gloo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_ELEMENTS: Final = 2**24  #: of fp32: 64 MiB
_TIMES: Final = 5
_PATIENCE: Final = dt.timedelta(minutes=3)  #: for all nodes to come


def main() -> None:
    """Measure the all-reduce of all ranks, and the hierarchical one, and print both."""
    device = local_device()
    dist.init_process_group(dist.get_default_backend_for_device(device), timeout=_PATIENCE)
    node, nodes = (int(os.environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"))
    ranks = dist.get_world_size()
    places = _gathered(node)
    whole = torch.ones(_ELEMENTS, device=device)
    part = torch.empty(_ELEMENTS // (ranks // nodes), device=device)
    inner = _own_group([[r for r in range(ranks) if places[r] == n] for n in range(nodes)])
    own = dist.get_group_rank(inner, dist.get_rank())
    outer = _own_group(
        [
            [[r for r in range(ranks) if places[r] == n][k] for n in range(nodes)]
            for k in range(ranks // nodes)
        ]
    )

    def hierarchical() -> None:
        dist.reduce_scatter_tensor(part, whole, group=inner)
        dist.all_reduce(part, group=outer)
        dist.all_gather_into_tensor(whole, part, group=inner)

    found = {
        "message_bytes": 4 * _ELEMENTS,
        "places": places,
        "flat": _measured(lambda: dist.all_reduce(whole), device, is_first=own == 0),
        "hierarchical": _measured(hierarchical, device, is_first=own == 0),
    }
    if dist.get_rank() == 0:
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()
    dist.barrier()
    wait_for_gloo()
    dist.destroy_process_group()


def _own_group(groups: list[list[int]]) -> dist.ProcessGroup:
    """Make all ``groups`` of ranks, and return the group of this rank."""
    made = [dist.new_group(ranks) for ranks in groups]
    own = next(each for each, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)
    assert isinstance(own, dist.ProcessGroup), "this rank is in it"
    return own


def _gathered(value: Any) -> list[Any]:
    """Return the value of each rank, [rank]."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _measured(
    work: Callable[[], object], device: torch.device, *, is_first: bool
) -> dict[str, float | None]:
    """Measure ``work``: the slowest rank's time in seconds, and the largest number of bytes sent.

    The first rank of each node counts the bytes that its node sends; None if unknown.
    """
    work()
    before = _quiet_count()
    start_s = time.perf_counter()
    for _ in range(_TIMES):
        work()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    seconds = (time.perf_counter() - start_s) / _TIMES
    after = _quiet_count()
    known = is_first and before is not None and after is not None
    sent = (after - before) / _TIMES if known else None  # type: ignore[operator]  # as known says
    counts = [count for count in _gathered(sent) if count is not None]
    return {"seconds": max(_gathered(seconds)), "sent_bytes": max(counts, default=None)}


def _quiet_count() -> int | None:
    """Return the bytes sent by this node, read while no rank sends."""
    dist.barrier()
    count = network_sent_bytes()
    dist.barrier()
    return count


if __name__ == "__main__":
    main()
