"""What messages between the stages of a pipeline cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.projection.simulate import Hop
from hybridperf.projection.stages import Stages, axis_stride
from hybridperf.projection.traffic import message_bytes

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.link import Network

__all__ = ["stage_hops"]


def stage_hops(
    plan: ParallelPlan, network: Network, stages: Stages, microbatch: int, *, forth: bool
) -> tuple[Hop | None, ...]:
    """Return the message of each stage to the next one, or to the one before."""
    count, stride = len(stages.units), axis_stride(plan, "pp")
    hops: list[Hop | None] = []
    for stage in range(count):
        other = stage + 1 if forth else stage - 1
        if not 0 <= other < count or stages.rank_of[other] == stages.rank_of[stage]:
            hops.append(None)
            continue
        sender, receiver = stages.rank_of[stage], stages.rank_of[other]
        link = network.hop(sender * stride, receiver * stride, stride)
        last = stages.units[min(stage, other)][-1]
        size = message_bytes(plan, stages.table.units, last, microbatch)
        hops.append(Hop(f"{sender}-{receiver}", size / link.own_bytes_per_s, link.latency_s))
    return tuple(hops)
