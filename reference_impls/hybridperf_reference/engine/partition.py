"""Partition a chain into pipeline stages that minimize the cost of the most expensive stage."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hybridperf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hybridperf_reference.engine.chain import Chain

__all__ = ["cut_chain", "forward_flops", "minimax_partition"]


def cut_chain(costs: Sequence[int], boundaries: Sequence[Tensor], stages: int) -> list[slice]:
    """Return one slice of units for each stage, minimizing the cost of the most expensive stage.

    ``costs`` has one entry per unit. ``boundaries`` are samples [...] before each unit and after
    the last: stages begin only where these are floating-point, since no gradient flows through
    others.

    Raises:
        UserError: exit status 2 if there are fewer such boundaries than the stages need.
    """
    inner = enumerate(boundaries[1:-1], start=1)
    edges = [0, *(place for place, sample in inner if sample.is_floating_point()), len(costs)]
    parts = list(pairwise(edges))
    if stages > len(parts):
        raise UserError(
            f"expected at most {len(parts)} stages, between which units pass floating-point "
            f"numbers, found {stages}; lower pp.",
            ExitCode.USAGE,
        )
    cuts = minimax_partition([sum(costs[first:last]) for first, last in parts], stages)
    return [slice(parts[cut.start][0], parts[cut.stop - 1][1]) for cut in cuts]


def minimax_partition(costs: Sequence[int], stages: int) -> list[slice]:
    """Return ``stages`` consecutive, non-empty slices of ``costs`` whose largest sum is minimal.

    Exact: the optimum is the sum of some run of units, so a binary search over those sums finds it,
    testing each by a greedy partition (Khanna, Muthukrishnan and Skiena 1997). Optimal partitions
    are not unique; this one fills early stages first and leaves each later stage at least one unit.

    Raises:
        ValueError: if there are fewer units than stages.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} units cannot make {stages} stages")
    sums = [0, *accumulate(costs)]
    bottlenecks = sorted({high - low for i, low in enumerate(sums) for high in sums[i + 1 :]})
    low, high = 0, len(bottlenecks) - 1
    while low < high:
        middle = (low + high) // 2
        if _cuts(sums, stages, bottlenecks[middle]) is None:
            low = middle + 1
        else:
            high = middle
    cuts = _cuts(sums, stages, bottlenecks[low])
    assert cuts is not None
    return [slice(first, last) for first, last in pairwise(cuts)]


def _cuts(sums: Sequence[int], stages: int, bottleneck: int) -> list[int] | None:
    """Partition greedily with no stage above ``bottleneck``; None if that is impossible.

    ``sums`` are the prefix sums of the costs. Returns the first unit of each stage, and the number
    of units.
    """
    units = len(sums) - 1
    cuts = [0]
    for stage in range(stages):
        reach = bisect_right(sums, sums[cuts[-1]] + bottleneck) - 1
        cut = min(reach, units - (stages - 1 - stage))
        if cut == cuts[-1]:
            return None
        cuts.append(cut)
    return cuts if cuts[-1] == units else None


def forward_flops(chain: Chain) -> list[int]:
    """Return the FLOPs of each unit's forward pass on one sample, by torch's FlopCounterMode."""
    flops = []
    modules, outputs = chain.probe()
    for module in modules:
        # torch 2.11 does not count the fused kernel of attention on the CPU.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as count:
            outputs = module(outputs)
        flops.append(count.get_total_flops())
    return flops
