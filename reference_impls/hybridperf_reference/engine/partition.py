"""What the units of a chain cost, by which it is cut into pipeline stages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.units import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Chain, Probe

__all__ = ["chain_units", "forward_flops", "stage_slices"]


def chain_units(chain: Chain, probe: Probe) -> list[Unit]:
    """Return what the units of ``chain`` cost, as far as cuts depend on it.

    Stages begin only where activations are floating-point, since no gradient flows through others.
    What units keep for the backward pass is not counted.
    """
    return [
        Unit(
            unit.name,
            forward_flops=flops,
            parameters=sum(parameter.numel() for parameter in unit.module.parameters()),
            output_elements=after.numel(),
            kept_elements=0,
            begins_stage=before.is_floating_point(),
        )
        for unit, flops, (before, after) in zip(
            chain.units, forward_flops(probe), pairwise(probe.boundaries), strict=True
        )
    ]


def stage_slices(plan: ParallelPlan, units: Sequence[Unit]) -> list[slice]:
    """Return the slice of ``units`` that each stage of ``plan`` has.

    Raises:
        UserError: exit status 2 if a stage would begin where it cannot.
    """
    edges = (0, *stage_cuts(plan, units), len(units))
    return [slice(first, last) for first, last in pairwise(edges)]


def forward_flops(probe: Probe) -> list[int]:
    """Return the FLOPs of each unit's forward pass on one sample, by torch's FlopCounterMode."""
    flops = []
    outputs = probe.inputs
    for module in probe.modules:
        # torch 2.11 does not count the fused kernel of attention on the CPU.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as count:
            outputs = module.eval()(outputs)
        flops.append(count.get_total_flops())
    return flops
