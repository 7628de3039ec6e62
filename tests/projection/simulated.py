"""Costs and programs for tests of the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.plan import ParallelPlan
from hybridperf.plan.program import rank_program
from hybridperf.projection.simulate import Bucket, Costs, Hop, Timeline, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.schedules import Action

__all__ = ["costs_of", "programs_of", "simulated"]


def programs_of(plan: ParallelPlan, steps: int = 1) -> list[list[Action]]:
    """Return the program of each rank of a pipeline."""
    return [list(rank_program(plan, rank, range(steps))) for rank in range(plan.pp)]


def costs_of(
    plan: ParallelPlan,
    *,
    forward_s: Sequence[float] = (1.0,),
    backward_s: Sequence[float] = (2.0,),
    occupied_s: float = 0.0,
    latency_s: float = 0.0,
    buckets: Sequence[Bucket] = (),
    update_s: float = 0.0,
    clip_s: float | None = None,
    wire: str | None = None,
) -> Costs:
    """Return costs by stage, which are alike if one is given; halves of a backward pass too."""
    stages = plan.pipeline_stages
    forward, backward = (
        tuple(each) if len(each) > 1 else tuple(each) * stages for each in (forward_s, backward_s)
    )
    rank_of = {stage: rank for rank in range(plan.pp) for stage in plan.stages_of(rank)}

    def hop(sender: int, receiver: int) -> Hop | None:
        if receiver not in rank_of or rank_of[sender] == rank_of[receiver]:
            return None
        return Hop(wire or f"{rank_of[sender]}-{rank_of[receiver]}", occupied_s, latency_s)

    return Costs(
        forward_s=forward,
        backward_s=backward,
        input_s=tuple(each / 2 for each in backward),
        weight_s=tuple(each / 2 for each in backward),
        activations=tuple(hop(stage, stage + 1) for stage in range(stages)),
        gradients=tuple(hop(stage, stage - 1) for stage in range(stages)),
        buckets=(tuple(buckets),) * stages,
        update_s=(update_s,) * plan.pp,
        clip_s=clip_s,
    )


def simulated(text: str, steps: int = 1, **costs: object) -> Timeline:
    """Return the timeline of a plan."""
    plan = ParallelPlan.parse(text)
    return simulate(programs_of(plan, steps), costs_of(plan, **costs))  # type: ignore[arg-type]  # keywords of costs_of
