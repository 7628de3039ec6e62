"""Cut a chain into stages so that the costliest stage costs as little as possible."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference_impls.engine.chain import Chain

__all__ = ["forward_flops", "minimax_partition"]


def minimax_partition(costs: Sequence[int], stages: int) -> list[slice]:
    """Return ``stages`` consecutive, non-empty slices of ``costs`` whose largest sum is minimal.

    Exact: the optimum is the sum of some run of units, so a binary search over those sums, each
    tried by cutting greedily, finds it (Khanna, Muthukrishnan and Skiena 1997). The stages of an
    optimum are not unique; this one fills early stages first, and leaves each later one a unit.

    Raises:
        ValueError: where there are fewer units than stages.
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
    """Return the floating-point operations of each unit's forward pass on one sample."""
    flops = []
    outputs = chain.example(1)[0].to("meta")
    for module in chain.shadow():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            outputs = module(outputs)
        flops.append(counter.get_total_flops())
    return flops
