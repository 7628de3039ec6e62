"""What the units of a chain cost, by which it is cut into pipeline stages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.units import Parameters, Unit
from hybridperf_reference.engine.precision import normalization_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.units import ParameterKind
    from hybridperf_reference.engine import chain as model
    from hybridperf_reference.engine.chain import Chain, Probe

__all__ = ["chain_units", "forward_flops", "parameter_groups", "stage_slices"]


def chain_units(chain: Chain, probe: Probe) -> list[Unit]:
    """Return what the units of ``chain`` cost, as far as cuts depend on it.

    Stages begin only where activations are floating-point, since no gradient flows through others.
    What units keep for the backward pass is not counted.
    """
    return [
        Unit(
            unit.name,
            forward_flops=flops,
            parameter_groups=tuple(parameter_groups(unit)),
            output_elements=after.numel(),
            kept_elements=0,
            begins_stage=before.is_floating_point(),
        )
        for unit, flops, (before, after) in zip(
            chain.units, forward_flops(probe), pairwise(probe.boundaries), strict=True
        )
    ]


def parameter_groups(unit: model.Unit) -> Iterator[Parameters]:
    """Yield the parameters of ``unit``, those of one kind and equally many rows together."""
    normalization = set(normalization_parameters(unit.module))
    groups: dict[tuple[ParameterKind, int], list[int]] = {}
    for name, parameter in unit.module.named_parameters():
        layer, _, own = name.rpartition(".")
        kind: ParameterKind = "normalization" if parameter in normalization else "other"
        if split := unit.split.get(layer):
            kind = "row_bias" if (split, own) == ("row", "bias") else split
        rows = len(parameter) if parameter.dim() else 0
        groups.setdefault((kind, rows), []).append(parameter.numel())
    for (kind, rows), elements in groups.items():
        yield Parameters(kind, rows, sum(elements), len(elements))


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
