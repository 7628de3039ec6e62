"""Times that a step takes at least: they order a search, and end it early.

Every bound is one of what `project` finds for a plan; `tests/projection/test_search.py` holds each
to the projection of every valid plan of small cases.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan import SCHEDULES
from hybridperf.plan.fields import PlanFields
from hybridperf.projection.candidates import Layout
from hybridperf.projection.collectives import all_gather, all_reduce, reduce_scatter
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.traffic import (
    gradient_bytes,
    held_parameters,
    message_bytes,
    tensor_parallel_bytes,
)

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.candidates import Candidates, Pipeline
    from hybridperf.projection.link import Network
    from hybridperf.projection.partition import Cuts
    from hybridperf.projection.simulate import Costs
    from hybridperf.projection.units import Unit, UnitTable, UnitTiming

__all__ = ["GroupBounds", "plan_at_least_s"]

_ONE: Final = Layout(1, 1, 1)


def plan_at_least_s(plan: ParallelPlan, costs: Costs) -> float:
    """Return seconds that a step of ``plan`` takes at least, by what its actions cost.

    A wire carries one message after another. A rank computes its passes and its update. Averages of
    a stage begin in its last backward pass at the earliest, and what they take beyond it comes on
    top, unless they may take a whole step. Under a flush the first rank begins a step by a forward
    pass, which has to reach every rank before that computes, and ends it by a backward pass, which
    has to come back from there; and every micro-batch goes through all stages and back.
    """
    number, placed = plan.microbatches, [plan.stages_of(rank) for rank in range(plan.pp)]
    wires = defaultdict[str, float](float)
    for hop in (*costs.activations, *costs.gradients):
        if hop is not None:
            wires[hop.wire] += number * hop.occupied_s
    most, reach = max(wires.values(), default=0.0), 0.0
    drains = plan.flush and not (plan.pipeline and plan.pipeline.split_backward)
    for rank, own in enumerate(placed):
        passes_s = number * sum(costs.forward_s[s] + costs.backward_s[s] for s in own)
        averages_s = [sum(bucket.seconds for bucket in costs.buckets[s]) for s in own]
        if plan.staleness:
            most, waits_s = max(most, sum(averages_s)), 0.0
        elif plan.sync == "blocking":
            waits_s = sum(averages_s)
        else:
            waits_s = sum(
                max(0.0, average_s - costs.backward_s[stage])
                for stage, average_s in zip(own, averages_s, strict=True)
            )
        most = max(most, passes_s + waits_s + costs.update_s[rank])
        if drains:
            most = max(most, reach + passes_s + costs.update_s[0])
            reach += costs.forward_s[rank] + costs.backward_s[rank]
            for hop in (costs.activations[rank], costs.gradients[(rank + 1) % plan.pp]):
                reach += hop.occupied_s + hop.latency_s if hop else 0.0
    if plan.flush:
        split = plan.pipeline is not None and plan.pipeline.split_backward
        backward_s = costs.input_s if split else costs.backward_s
        hops = (hop for hop in (*costs.activations, *costs.gradients) if hop is not None)
        path_s = sum(costs.forward_s) + sum(backward_s)
        path_s += sum(hop.occupied_s + hop.latency_s for hop in hops)
        most = max(most, path_s + costs.update_s[0])
    return most


class _Rank(NamedTuple):
    """What a rank of a pipeline does at least, in seconds."""

    passes_s: float  #: of one micro-batch, forward and backward
    backward_s: float  #: of them, backward
    before_s: float  #: of the stages before its first one, for which it waits in a flushed step
    wire_s: float  #: of the messages of one micro-batch to the next rank
    averages_s: float  #: of its gradients over replicas


class GroupBounds:
    """Lower bounds on the steps of all plans that share a layout and an order of passes.

    Few numbers of stages and sizes of micro-batches make very many plans, so what is found for one
    of them is kept.
    """

    def __init__(
        self, candidates: Candidates, units: UnitTable, timing: UnitTiming, network: Network
    ) -> None:
        self._candidates, self._units, self._network = candidates, units.units, network
        self.timing = cache(timing)
        self.by_flops, self.by_time = cache(self._by_flops), cache(self._by_time)
        self._sums, self._ranks = cache(self._running_sums), cache(self._of_ranks)
        self._averages, self._adding_up = cache(self._averages_s), cache(self._adding_up_s)

    def microbatch(self, layout: Layout, pipeline: Pipeline) -> int:
        """Return the samples of a micro-batch."""
        batch = self._candidates.config.global_batch_size
        return batch // layout.dp // pipeline.microbatches

    def at_least_s(self, layout: Layout, pipeline: Pipeline) -> float:
        """Return seconds that a step takes at least, by its busiest rank or wire.

        A rank computes the passes of all its stages for all micro-batches. Of what tensor
        parallelism splits it computes its part, and adds up activations with its group. It sends
        each micro-batch to the next rank. Gradients are averaged, or at least scattered, from its
        last backward passes on. Groups and neighbours may be placed wherever an order of axes can
        place them. With a flush, rank r also waits: its first pass needs those of the stages before
        its first one, which are on other ranks, and these compute their backward passes after its
        last one, before the next step begins. Where backward passes are split, a rank's last pass
        may be one that nobody waits for, so that only forward passes count. Recomputation, updates
        and all other communication come on top.
        """
        cuts = pipeline.cuts or self.by_flops(layout.pp * pipeline.stages)
        samples, number = self.microbatch(layout, pipeline), pipeline.microbatches
        most = 0.0
        for rank in self._ranks(samples, layout, pipeline.schedule, pipeline.stages, cuts):
            passes_s = number * rank.passes_s
            averaged_s = rank.averages_s
            if not pipeline.staleness:
                averaged_s = passes_s + max(0.0, averaged_s - rank.backward_s)
            flushed_s = passes_s + rank.before_s if pipeline.flush else 0.0
            most = max(most, passes_s, averaged_s, flushed_s, number * rank.wire_s)
        return most

    def _by_flops(self, stages: int) -> Cuts:
        """Return the first units of all ``stages`` but the first, as ``cut=minimax`` has them."""
        return stage_cuts(PlanFields(pp=stages), self._units)

    def _by_time(self, stages: int, samples: int) -> Cuts:
        """Return those where the passes of the slowest stage take the least time."""
        both = [high - low for low, high in pairwise(self._sums(samples, _ONE)[1])]
        allowed = [unit.begins_stage for unit in self._units]
        return partition("minimax", both, stages, allowed)

    def _of_ranks(
        self, samples: int, layout: Layout, schedule: str | None, stages: int, cuts: Cuts
    ) -> list[_Rank]:
        forward, both = self._sums(samples, layout if layout.tp > 1 else _ONE)
        edges = (0, *cuts, len(self._units))
        spans = list(pairwise(edges))
        averages = self._averages(layout, schedule, stages, cuts)
        if schedule is None:
            return [_Rank(both[-1], both[-1] - forward[-1], 0.0, 0.0, averages[0])]
        pipeline = SCHEDULES[schedule]
        before = forward if pipeline.split_backward else both
        ranks = []
        for rank in range(layout.pp):
            own = pipeline.placement(rank, layout.pp, stages)
            passes_s = sum(both[spans[s][1]] - both[spans[s][0]] for s in own)
            forward_s = sum(forward[spans[s][1]] - forward[spans[s][0]] for s in own)
            wire_s = 0.0
            if rank + 1 < layout.pp:
                nexts = pipeline.placement(rank + 1, layout.pp, stages)
                last = [self._units[spans[s][1] - 1] for s in own if s + 1 in nexts]
                wire_s = self._sending_s(layout, rank, last, samples)
            ranks.append(
                _Rank(
                    passes_s, passes_s - forward_s, before[edges[min(own)]], wire_s, averages[rank]
                )
            )
        return ranks

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
        if layout.tp == 1 or not unit.parameters:
            return 1.0, 0.0
        plan = PlanFields(tp=layout.tp, precision=self._candidates.precision)
        part = held_parameters(plan, unit) / unit.parameters
        size = tensor_parallel_bytes(plan, unit, samples)
        strides = {1, layout.dp, layout.pp, layout.dp * layout.pp}
        return part, min(self._adding_up(size, layout.tp, stride) for stride in strides)

    def _adding_up_s(self, size: float, ranks: int, stride: int) -> float:
        group = self._network.group(ranks, stride)
        halves_s = reduce_scatter(size, group).seconds + all_gather(size, group).seconds
        return min(all_reduce(size, group).seconds, halves_s)

    def _averages_s(
        self, layout: Layout, schedule: str | None, stages: int, cuts: Cuts
    ) -> list[float]:
        """Return the seconds of averaging the gradients of each rank in the fastest way."""
        spans = list(pairwise((0, *cuts, len(self._units))))
        seconds = []
        for rank in range(layout.pp):
            own = SCHEDULES[schedule].placement(rank, layout.pp, stages) if schedule else (0,)
            units = [unit for s in own for unit in self._units[spans[s][0] : spans[s][1]]]
            size = min(
                sum(
                    gradient_bytes(PlanFields(tp=layout.tp, gradients=form), unit) for unit in units
                )
                for form in self._candidates.gradients
            )
            seconds.append(self._averaging_s(size, layout) if layout.dp > 1 else 0.0)
        return seconds

    def _averaging_s(self, size: float, layout: Layout) -> float:
        ways = []
        for stride in {1, layout.tp, layout.pp, layout.tp * layout.pp}:
            whole = self._network.group(layout.dp, stride)
            ways += [all_reduce(size, whole).seconds, reduce_scatter(size, whole).seconds]
            near = self._candidates.near_replicas(layout)
            if near is not None:
                inner = self._network.group(near, stride)
                outer = self._network.group(layout.dp // near, stride * near)
                over_s = all_reduce(size / near, outer).seconds
                ways.append(reduce_scatter(size, inner).seconds + over_s)
        return min(ways)

    def _sending_s(self, layout: Layout, rank: int, last: list[Unit], samples: int) -> float:
        """Return the seconds for which the wire from ``rank`` to the next is occupied at least."""
        plans = [
            PlanFields(pp=2, tp=layout.tp, sp=layout.tp > 1, links=links)
            for links in self._candidates.links
        ]
        size = min(sum(message_bytes(plan, unit, samples) for unit in last) for plan in plans)
        return min(
            size / self._network.hop(rank * n, (rank + 1) * n, n).own_bytes_per_s
            for n in {1, layout.dp, layout.tp, layout.dp * layout.tp}
        )
