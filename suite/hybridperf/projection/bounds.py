"""Times that a step takes at least: they order a search, and end it early.

Every bound is one of what `project` finds for a plan; `tests/projection/test_search.py` holds each
to the projection of every valid plan of small cases.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import accumulate, pairwise, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.stages import axis_stride
from hybridperf.projection.tensor_parallel import PassBytes, tensor_parallel_bytes
from hybridperf.projection.traffic import held_parameters

if TYPE_CHECKING:
    from hybridperf.projection.candidates import Candidates, Layout, Pipeline
    from hybridperf.projection.link import Network
    from hybridperf.projection.partition import Cuts
    from hybridperf.projection.simulate import Costs, Hop
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["GroupBounds", "busiest_s", "plan_at_least_s"]

Ways: TypeAlias = "tuple[tuple[int, bool], ...]"  #: stride of tp ranks, and whether there is sp
_ALONE: Final[Ways] = ((1, False),)  #: the ways of tensor parallelism of one rank


def plan_at_least_s(plan: ParallelPlan, costs: Costs) -> float:
    """Return seconds that a step of ``plan`` takes at least, by what its actions cost.

    No less than `busiest_s`. Under a flush the first rank begins a step by a forward pass, which
    has to reach every rank before that computes, and ends it by a backward pass, which has to come
    back from there; and every micro-batch goes through all stages and back.
    """
    most, reach = busiest_s(plan, costs), 0.0
    if not plan.flush:
        return most
    splits = plan.pipeline is not None and plan.pipeline.split_backward
    for rank in range(plan.pp) if not splits else ():
        passes_s = plan.microbatches * sum(
            costs.forward_s[stage] + costs.backward_s[stage] for stage in plan.stages_of(rank)
        )
        most = max(most, reach + passes_s + costs.update_s[0])
        reach += costs.forward_s[rank] + costs.backward_s[rank]
        reach += _arrives_s(costs.activations[rank])
        reach += _arrives_s(costs.gradients[(rank + 1) % plan.pp])
    path_s = sum(costs.forward_s) + sum(costs.input_s if splits else costs.backward_s)
    path_s += sum(map(_arrives_s, (*costs.activations, *costs.gradients)))
    return max(most, path_s + costs.update_s[0])


def busiest_s(plan: ParallelPlan, costs: Costs) -> float:
    """Return seconds that the busiest rank, wire or network adapter takes for a step by itself.

    A rank computes its passes and its update. Averages of a stage begin in its last backward pass
    at the earliest, and what they take beyond it comes on top, unless they may take a whole step.
    The processor time of averages comes on top, too, but may be spent while the rank waits for
    them, of which then none takes more than its own time. A wire carries one message after another.
    Ranks that share network adapters average in turns.

    So no step takes less in the long run, though the first ones may: averages that may take a whole
    step let what is behind catch up later.
    """
    wires, turns = defaultdict[str, float](float), defaultdict[int, float](float)
    for hop in (*costs.activations, *costs.gradients):
        if hop is not None:
            wires[hop.wire] += plan.microbatches * hop.occupied_s
    ranks = []
    for rank in range(plan.pp):
        own = plan.stages_of(rank)
        averages_s = [sum(bucket.seconds for bucket in costs.buckets[stage]) for stage in own]
        turns[costs.turns[rank] if costs.turns else rank] += sum(averages_s)
        passes_s = sum(costs.forward_s[s] + costs.backward_s[s] for s in own)
        waits_s = 0.0
        for stage, average_s in zip(own, averages_s, strict=True):
            hidden_s = 0.0 if plan.sync == "blocking" else costs.backward_s[stage]
            waits_s += 0.0 if plan.staleness else max(0.0, average_s - hidden_s)
        worked_s = costs.averaging_work * sum(averages_s)
        beside_s = max(waits_s, worked_s / max(1.0, costs.averaging_work))
        ranks.append(plan.microbatches * passes_s + beside_s + costs.update_s[rank])
    return max(*ranks, *wires.values(), *turns.values())


def _arrives_s(hop: Hop | None) -> float:
    """Return the seconds from the end of a pass to the start of the one that a message is for."""
    return 0.0 if hop is None else hop.occupied_s + hop.latency_s


def _plan(**fields: Any) -> ParallelPlan:
    """Return a plan of which only ``fields`` count."""
    return ParallelPlan(**fields)


class GroupBounds:
    """Lower bounds on the steps of plans that share a layout and an order of passes.

    Few numbers of stages and sizes of micro-batches make very many plans, so what is found for one
    of them is kept.
    """

    def __init__(
        self, candidates: Candidates, units: UnitTable, timing: UnitTiming, network: Network
    ) -> None:
        self._candidates, self._units, self._network = candidates, units.units, network
        self.timing = cache(timing)
        self.by_flops, self.by_time = cache(self._by_flops), cache(self._by_time)
        self._sums, self._tensor = cache(self._running_sums), cache(self._tensor_s)
        self._ways = cache(self._all_ways)

    def microbatch(self, layout: Layout, pipeline: Pipeline) -> int:
        """Return the samples of a micro-batch."""
        batch = self._candidates.config.global_batch_size
        return batch // layout.dp // pipeline.microbatches

    def at_least_s(
        self, layout: Layout, pipeline: Pipeline, plan: ParallelPlan | None = None
    ) -> float:
        """Return a lower bound on the step time, in seconds, by the passes of the busiest rank.

        That is under ``plan`` or, if None, under all plans of the group. A rank computes the passes
        of all its stages for all micro-batches. Of what tensor parallelism splits it computes its
        part, and adds up activations with its group. With a flush, rank r also waits: its first
        pass needs those of the stages before its first one, which are on other ranks, and these
        compute their backward passes after its last one, before the next step begins. Where
        backward passes are split, others wait for the halves that compute gradients of inputs only.
        Recomputation, updates and all other communication come on top: bounding averages and
        messages saved no search any time.
        """
        ways: Ways = _ALONE
        if layout.tp > 1:
            ways = ((axis_stride(plan, "tp"), plan.sp),) if plan else self._ways(layout)
        forward, both = self._sums(self.microbatch(layout, pipeline), layout.tp, ways)
        edges = (0, *self.cuts(layout, pipeline), len(self._units))
        schedule = SCHEDULES.get(pipeline.schedule or "")
        splits = schedule is not None and schedule.split_backward
        number, most = pipeline.microbatches, 0.0
        for rank, own in enumerate(self._placed(layout, pipeline)):
            passes_s = sum(both[edges[stage + 1]] - both[edges[stage]] for stage in own)
            most, first = max(most, number * passes_s), edges[min(own)]
            if pipeline.flush and not splits:
                most = max(most, both[first] + number * passes_s)
            elif pipeline.flush and rank:  # the halves that compute gradients of inputs count
                forward_s = sum(forward[edges[stage + 1]] - forward[edges[stage]] for stage in own)
                back_s = both[first] - both[edges[1]] - (forward[first] - forward[edges[1]])
                own_s = number * (forward_s + passes_s) / 2
                most = max(most, forward[first] + own_s + back_s / 2)
        return most

    def _all_ways(self, layout: Layout) -> Ways:
        """Return the ways of all plans of ``layout``: every order of axes, with and without sp."""
        orders = (_plan(**layout._asdict(), order=each) for each in self._candidates.orders(layout))
        return tuple(product({axis_stride(each, "tp") for each in orders}, (False, True)))

    def cuts(self, layout: Layout, pipeline: Pipeline) -> Cuts:
        """Return the first units of each stage but the first."""
        return pipeline.cuts or self.by_flops(layout.pp * pipeline.stages)

    def _by_flops(self, stages: int) -> Cuts:
        """Return the first units of all ``stages`` but the first, as ``cut=minimax`` has them."""
        return stage_cuts(_plan(pp=stages), self._units)

    def _by_time(self, stages: int, samples: int) -> Cuts:
        """Return those where the passes of the slowest stage take the least time."""
        both = [high - low for low, high in pairwise(self._sums(samples, 1, _ALONE)[1])]
        allowed = [unit.begins_stage for unit in self._units]
        return partition("minimax", both, stages, allowed)

    @staticmethod
    def _placed(layout: Layout, pipeline: Pipeline) -> list[tuple[int, ...]]:
        """Return the stages of each rank."""
        if pipeline.schedule is None:
            return [(0,)]
        placement = SCHEDULES[pipeline.schedule].placement
        return [placement(rank, layout.pp, pipeline.stages) for rank in range(layout.pp)]

    def _running_sums(self, samples: int, tp: int, ways: Ways) -> tuple[list[float], list[float]]:
        """Return running sums over units: of forward passes, and of both passes with the loss."""
        times, precision = self.timing(samples), self._candidates.precision
        plans = [(stride, _plan(tp=tp, sp=sp, precision=precision)) for stride, sp in ways]
        forward_s, both_s = [], []
        for number, unit in enumerate(self._units):
            part, tensor_s = 1.0, [(0.0, 0.0)]
            if tp > 1 and unit.parameters:
                part = held_parameters(plans[0][1], unit) / unit.parameters
                tensor_s = [
                    (
                        self._tensor(sent.forward, tp, stride),
                        self._tensor(sent.backward, tp, stride),
                    )
                    for stride, plan in plans
                    for sent in [tensor_parallel_bytes(plan, self._units, number, samples)]
                ]
            once_s, back_s = times.forward_s[number], times.backward_s[number]
            forward_s.append(once_s * part + min(forward for forward, _ in tensor_s))
            both_s.append((once_s + back_s) * part + min(map(sum, tensor_s)))
        both_s[-1] += times.loss_s
        return [0.0, *accumulate(forward_s)], [0.0, *accumulate(both_s)]

    def _tensor_s(self, sent: PassBytes, ranks: int, stride: int) -> float:
        """Return the seconds of what a tp group exchanges in a pass."""
        return sent.seconds(self._network.group(ranks, stride))
