"""Where a search cuts pipelines, and times that a step takes at least whatever is sent."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from hybridperf.plan import SCHEDULES
from hybridperf.plan.fields import PlanFields
from hybridperf.projection.partition import partition, stage_cuts

if TYPE_CHECKING:
    from hybridperf.projection.candidates import Layout, Pipeline
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["StageCosts"]


class _Rank(NamedTuple):
    """Seconds that a rank of a pipeline computes, and waits for the stages before its first."""

    each_microbatch_s: float
    before_s: float  #: in a step that ends with a flush


class StageCosts:
    """The stages of pipelines over ``units``, and lower bounds on steps made of their times.

    Few numbers of stages and sizes of micro-batches make very many plans, so what is found for one
    of them is kept.
    """

    def __init__(self, units: UnitTable, timing: UnitTiming, global_batch_size: int) -> None:
        self._units, self._batch, self.timing = units.units, global_batch_size, cache(timing)
        self.by_flops = cache(self._by_flops)
        self.by_time = cache(self._by_time)
        self._sums, self._ranks = cache(self._running_sums), cache(self._of_ranks)

    def microbatch(self, layout: Layout, pipeline: Pipeline) -> int:
        """Return the samples of a micro-batch."""
        return self._batch // layout.dp // pipeline.microbatches

    def at_least_s(self, layout: Layout, pipeline: Pipeline) -> float:
        """Return seconds that a step takes at least, from the passes of its busiest rank.

        A rank computes the passes of all its stages for all micro-batches, and tensor parallelism
        divides them by ``tp`` at best. With a flush, rank r also waits: its first pass needs those
        of the stages before its first one, which are on other ranks, and these compute their
        backward passes after its last one, before the next step begins. Where backward passes are
        split, a rank's last pass may be one that nobody waits for, so that only forward passes
        count. Recomputation, updates and communication come on top.
        """
        cuts = pipeline.cuts or self.by_flops(layout.pp * pipeline.stages)
        samples, number = self.microbatch(layout, pipeline), pipeline.microbatches
        ranks = self._ranks(samples, pipeline.schedule, layout.pp, pipeline.stages, cuts)
        return (
            max(
                number * rank.each_microbatch_s + (rank.before_s if pipeline.flush else 0.0)
                for rank in ranks
            )
            / layout.tp
        )

    def _by_flops(self, stages: int) -> tuple[int, ...]:
        """Return the first units of all ``stages`` but the first, as ``cut=minimax`` has them."""
        return stage_cuts(PlanFields(pp=stages), self._units)

    def _by_time(self, stages: int, samples: int) -> tuple[int, ...]:
        """Return those where the passes of the slowest stage take the least time."""
        both = [high - low for low, high in pairwise(self._sums(samples)[1])]
        allowed = [unit.begins_stage for unit in self._units]
        return partition("minimax", both, stages, allowed)

    def _of_ranks(
        self, samples: int, schedule: str | None, pp: int, stages: int, cuts: tuple[int, ...]
    ) -> list[_Rank]:
        forward, both = self._sums(samples)
        edges = (0, *cuts, len(self._units))
        passes = [both[stop] - both[start] for start, stop in pairwise(edges)]
        if schedule is None:
            return [_Rank(passes[0], 0.0)]
        placed = SCHEDULES[schedule].placement
        before = forward if SCHEDULES[schedule].split_backward else both
        return [
            _Rank(sum(passes[stage] for stage in own), before[edges[min(own)]])
            for own in (placed(rank, pp, stages) for rank in range(pp))
        ]

    def _running_sums(self, samples: int) -> tuple[list[float], list[float]]:
        """Return running sums over units: of forward passes, and of both passes with the loss."""
        times = self.timing(samples)
        both = [f + b for f, b in zip(times.forward_s, times.backward_s, strict=True)]
        both[-1] += times.loss_s
        return [0.0, *accumulate(times.forward_s)], [0.0, *accumulate(both)]
