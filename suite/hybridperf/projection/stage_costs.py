"""Where a search cuts pipelines, and times that a step takes at least whatever is sent."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan import SCHEDULES
from hybridperf.plan.fields import PlanFields
from hybridperf.projection.candidates import Layout
from hybridperf.projection.collectives import all_gather, all_reduce, reduce_scatter
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.traffic import held_parameters, tensor_parallel_bytes

if TYPE_CHECKING:
    from hybridperf.projection.candidates import Pipeline
    from hybridperf.projection.link import Network
    from hybridperf.projection.units import Unit, UnitTable, UnitTiming

__all__ = ["StageCosts"]


_ONE: Final = Layout(1, 1, 1)


class _Rank(NamedTuple):
    """Seconds that a rank of a pipeline computes, and waits for the stages before its first."""

    each_microbatch_s: float
    before_s: float  #: in a step that ends with a flush


class StageCosts:
    """The stages of pipelines over ``units``, and lower bounds on steps made of their passes.

    Few numbers of stages and sizes of micro-batches make very many plans, so what is found for one
    of them is kept.
    """

    def __init__(
        self, units: UnitTable, timing: UnitTiming, network: Network, global_batch_size: int
    ) -> None:
        self._units, self._network, self._batch = units.units, network, global_batch_size
        self.timing = cache(timing)
        self.by_flops, self.by_time = cache(self._by_flops), cache(self._by_time)
        self._adding_up = cache(self._adding_up_s)
        self._sums, self._ranks = cache(self._running_sums), cache(self._of_ranks)

    def microbatch(self, layout: Layout, pipeline: Pipeline) -> int:
        """Return the samples of a micro-batch."""
        return self._batch // layout.dp // pipeline.microbatches

    def at_least_s(self, layout: Layout, pipeline: Pipeline) -> float:
        """Return seconds that a step takes at least, from the passes of its busiest rank.

        A rank computes the passes of all its stages for all micro-batches. Of what tensor
        parallelism splits it computes its part, and adds up activations with its group, which may
        be placed wherever an order of axes can place it. With a flush, rank r also waits: its first pass
        needs those of the stages before its first one, which are on other ranks, and these compute
        their backward passes after its last one, before the next step begins. Where backward passes
        are split, a rank's last pass may be one that nobody waits for, so that only forward passes
        count. Recomputation, updates and all other communication come on top.
        """
        cuts = pipeline.cuts or self.by_flops(layout.pp * pipeline.stages)
        samples, number = self.microbatch(layout, pipeline), pipeline.microbatches
        ranks = self._ranks(samples, layout, pipeline.schedule, pipeline.stages, cuts)
        return max(
            number * rank.each_microbatch_s + (rank.before_s if pipeline.flush else 0.0)
            for rank in ranks
        )

    def _by_flops(self, stages: int) -> tuple[int, ...]:
        """Return the first units of all ``stages`` but the first, as ``cut=minimax`` has them."""
        return stage_cuts(PlanFields(pp=stages), self._units)

    def _by_time(self, stages: int, samples: int) -> tuple[int, ...]:
        """Return those where the passes of the slowest stage take the least time."""
        both = [high - low for low, high in pairwise(self._sums(samples, _ONE)[1])]
        allowed = [unit.begins_stage for unit in self._units]
        return partition("minimax", both, stages, allowed)

    def _of_ranks(
        self,
        samples: int,
        layout: Layout,
        schedule: str | None,
        stages: int,
        cuts: tuple[int, ...],
    ) -> list[_Rank]:
        forward, both = self._sums(samples, _ONE if layout.tp == 1 else layout)
        edges = (0, *cuts, len(self._units))
        passes = [both[stop] - both[start] for start, stop in pairwise(edges)]
        if schedule is None:
            return [_Rank(passes[0], 0.0)]
        placed = SCHEDULES[schedule].placement
        before = forward if SCHEDULES[schedule].split_backward else both
        return [
            _Rank(sum(passes[stage] for stage in own), before[edges[min(own)]])
            for own in (placed(rank, layout.pp, stages) for rank in range(layout.pp))
        ]

    def _running_sums(self, samples: int, layout: Layout) -> tuple[list[float], list[float]]:
        """Return running sums over units: of forward passes, and of both passes with the loss."""
        times = self.timing(samples)
        forward_s, both_s = [], []
        for unit, forward, backward in zip(
            self._units, times.forward_s, times.backward_s, strict=True
        ):
            part, sums_s = self._in_parallel(unit, samples, layout)
            forward_s.append(forward * part + sums_s)
            both_s.append((forward + backward) * part + 2 * sums_s)
        both_s[-1] += times.loss_s
        return [0.0, *accumulate(forward_s)], [0.0, *accumulate(both_s)]

    def _in_parallel(self, unit: Unit, samples: int, layout: Layout) -> tuple[float, float]:
        """Return the part of ``unit`` that a rank computes, and the seconds of adding up once."""
        tp = layout.tp
        if tp == 1 or not unit.parameters:
            return 1.0, 0.0
        part = held_parameters(PlanFields(tp=tp), unit) / unit.parameters
        narrow = PlanFields(tp=tp, precision="bf16")  # other precisions send as much, or more
        size = tensor_parallel_bytes(narrow, unit, samples)
        strides = {1, layout.dp, layout.pp, layout.dp * layout.pp}
        return part, min(self._adding_up(size, tp, stride) for stride in strides)

    def _adding_up_s(self, size: float, ranks: int, stride: int) -> float:
        group = self._network.group(ranks, stride)
        halves_s = reduce_scatter(size, group).seconds + all_gather(size, group).seconds
        return min(all_reduce(size, group).seconds, halves_s)
