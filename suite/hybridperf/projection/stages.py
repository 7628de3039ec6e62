"""Where the units of a model are under a plan: stages, ranks, and the ranks of each group."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.link import Group, Network
    from hybridperf.projection.units import UnitTable

__all__ = ["Stages", "axis_stride"]


class Stages:
    """The stages of ``plan``, whose first units but that of the first one are ``cuts``.

    Raises:
        ValueError: if there are not as many stages as the plan has, each with a unit.
    """

    def __init__(self, plan: ParallelPlan, table: UnitTable, cuts: Sequence[int]) -> None:
        bounds = [0, *cuts, len(table.units)]
        if len(bounds) != plan.pipeline_stages + 1 or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(
                f"plan '{plan}' has {plan.pipeline_stages} stages of {len(table.units)} units, "
                f"not those cut at {list(cuts)}"
            )
        self.plan, self.table = plan, table
        self.units = [range(first, stop) for first, stop in pairwise(bounds)]  #: by stage
        self.rank_of = {
            stage: rank for rank in range(plan.pp) for stage in plan.stages_of(rank)
        }  #: of the pipeline, by stage
        every = plan.recompute
        self.recomputed = {
            number
            for rank in range(plan.pp)
            for number in (self.units_of(rank)[::every] if every else ())
        }  #: units whose activations are computed again

    def units_of(self, rank: int) -> list[int]:
        """Return the indices of the units that a rank of the pipeline holds."""
        return [number for stage in self.plan.stages_of(rank) for number in self.units[stage]]

    def replica_groups(self, network: Network) -> tuple[Group, Group]:
        """Return the group that shares one copy of what is sharded, and that of such copies."""
        plan, stride = self.plan, axis_stride(self.plan, "dp")
        return (
            network.group(plan.shards, stride),
            network.group(plan.dp // plan.shards, stride * plan.shards),
        )


def axis_stride(plan: PlanFields, axis: str) -> int:
    """Return how far apart the global ranks of neighbours on ``axis`` of ``plan`` are."""
    inwards = plan.order.split("-")
    return math.prod(getattr(plan, inner) for inner in inwards[inwards.index(axis) + 1 :])
