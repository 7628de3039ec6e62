"""Time what ranks send each other, as the engine does: messages between stages, and collectives."""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from hybridperf.projection.profile import Transfer
from hybridperf_reference.engine.link import Link
from hybridperf_reference.engine.link_codecs import LINK_CODECS, LinkKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.projection.profile import Communication

__all__ = ["measure_averaging_work", "measure_transfers"]

_CPU_SIZES: Final = 7  # of messages, from 1 KiB to 4 MiB
_ACCELERATOR_SIZES: Final = 10  # to 256 MiB: smaller ones do not fill such links
_TIMES: Final = 15
_WARM_UP: Final = 3
_TURNS: Final = 7  # processes slow down and recover
_FEW: Final = 5  # times in a turn
_COMPUTED_S: Final = 0.02  # so long at least is computed beside an all-reduce
_TRIED_ELEMENTS: Final = 2**18  # of an all-reduce that says how many take as long
_MOST_TIMES: Final = 64  # as many elements
_ELEMENT_BYTES: Final = 4
_KEY: Final = LinkKey(0, 0, 0, 0, gradient=False)  # uncompressed messages do not depend on it


def measure_transfers(device: torch.device) -> list[Transfer]:
    """Time messages between pairs of ranks, and collectives of groups of each size.

    A collective over all ranks. Groups are of consecutive ranks; all groups of a size communicate
    at the same time, as those of a plan do. Times are means over ranks, of each one's median.
    """
    world = dist.get_world_size()
    powers = range(_CPU_SIZES if device.type == "cpu" else _ACCELERATOR_SIZES)
    found = []
    for ranks in range(2, world + 1):
        if world % ranks:
            continue
        group, _ = dist.new_subgroups(ranks)
        assert isinstance(group, dist.ProcessGroup), "every rank is in one of them"
        kinds: dict[Communication, Callable[[int], Callable[[], None]]] = {
            "all_reduce": partial(_all_reduce, group, device),
            "reduce_scatter": partial(_reduce_scatter, group, device),
            "all_gather": partial(_all_gather, group, device),
        }
        if ranks == 2:
            back, _ = dist.new_subgroups(ranks)
            assert isinstance(back, dist.ProcessGroup), "as above"
            kinds["send"] = partial(_there_and_back, group, back, device)
        for kind, of_size in kinds.items():
            trips = 2 if kind == "send" else 1
            times = []
            for size in (1024 * 4**power for power in powers):
                # A collective of parts has equal ones.
                elements = size // _ELEMENT_BYTES // ranks * ranks
                seconds = _mean(_seconds(of_size(elements), device), device)
                times.append((elements * _ELEMENT_BYTES, seconds / trips))
            found.append(Transfer(kind, ranks, tuple(times)))
    return found


def measure_averaging_work(device: torch.device, compute: Callable[[], object]) -> float:
    """Return for which share of the seconds of an all-reduce it keeps its ranks from computing.

    A collective. With c, a and b the seconds of computing, of an all-reduce of all ranks that takes
    half as long, and of both at once, that is (b - c) / a: sending and receiving take a processor,
    which on the CPU is one that computes where ranks compute on all of them. It is more than 1
    where both at once take longer than one after the other, since they share caches. Beside
    computing an all-reduce takes longer than alone: of one that alone takes as long as c, some is
    left when its ranks have computed, and that did not keep them from it.
    """
    group = dist.group.WORLD
    assert group is not None, "ranks have joined"
    step_s, reduce_s = (
        _mean(_seconds(each, device), device)
        for each in (compute, _all_reduce(group, device, _TRIED_ELEMENTS))
    )
    steps = math.ceil(_COMPUTED_S / step_s)
    count = round(min(steps * step_s / 2 / reduce_s, _MOST_TIMES) * _TRIED_ELEMENTS)
    values = torch.zeros(max(1, count), device=device)

    def compute_all() -> None:
        for _ in range(steps):
            compute()

    def both() -> None:
        work = dist.all_reduce(values, group=group, async_op=True)
        compute_all()
        _wait(work)

    each = (compute_all, _all_reduce(group, device, values.numel()), both)
    shares = []
    for _ in range(_TURNS):
        compute_s, reduce_s, both_s = (_mean(_seconds(one, device, _FEW), device) for one in each)
        shares.append((both_s - compute_s) / reduce_s)
    return max(statistics.median(shares), 0.0)


def _seconds(communicate: Callable[[], object], device: torch.device, times: int = _TIMES) -> float:
    """Return the median seconds of ``communicate``."""
    seconds = []
    for _ in range(_WARM_UP + times):
        _synchronize(device)
        start = time.perf_counter()
        communicate()
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[_WARM_UP:])


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _mean(value: float, device: torch.device) -> float:
    """Return the mean over all ranks."""
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def _there_and_back(
    forth: dist.ProcessGroup, back: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    """Return what sends a message from the first rank of a pair to the second, and one back."""
    own = dist.get_rank(forth)
    values = torch.zeros(elements, device=device)

    def link(group: dist.ProcessGroup) -> Link:
        codec = LINK_CODECS["none"]
        return Link(group, (elements,), values.dtype, device, codec=codec, most_sends=1)

    away, home = (link(forth), link(back)) if own == 0 else (link(back), link(forth))

    def exchange() -> None:
        if own == 0:
            away.send(values, _KEY)
            home.receive(another=False)
        else:
            home.receive(another=False)
            away.send(values, _KEY)
        away.drain()

    return exchange


def _all_reduce(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    values = torch.zeros(elements, device=device)
    return lambda: _wait(dist.all_reduce(values, group=group, async_op=True))


def _reduce_scatter(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    whole = torch.zeros(elements, device=device)
    own = torch.zeros(elements // dist.get_world_size(group), device=device)
    return lambda: _wait(dist.reduce_scatter_tensor(own, whole, group=group, async_op=True))


def _all_gather(
    group: dist.ProcessGroup, device: torch.device, elements: int
) -> Callable[[], None]:
    whole = torch.zeros(elements, device=device)
    own = torch.zeros(elements // dist.get_world_size(group), device=device)
    return lambda: _wait(dist.all_gather_into_tensor(whole, own, group=group, async_op=True))


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
