"""Times that a step takes at least: they order a search, and end it early.

Every bound is one of what `project` finds for a plan; `tests/projection/test_search.py` holds each
to the projection of every valid plan of small cases.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise, product
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.projection.collectives import all_reduce, reduce_scatter
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.stages import axis_stride
from hybridperf.projection.tensor_parallel import PassBytes, tensor_parallel_bytes
from hybridperf.projection.traffic import gradient_bytes, held_parameters, message_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.projection.candidates import Candidates, Layout, Pipeline
    from hybridperf.projection.link import Network
    from hybridperf.projection.partition import Cuts
    from hybridperf.projection.simulate import Costs, Hop
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["GroupBounds", "busiest_s", "plan_at_least_s"]

_ALONE: Final = ((1, False),)  #: the ways of tensor parallelism of one rank


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

    A rank computes its passes and its update, encodes and decodes. Averages of a stage begin in its
    last backward pass at the earliest, and what they take beyond it comes on top, unless they may
    take a whole step. The processor time of communication comes on top, too, but may be spent while
    the rank waits for averages, of which then none takes more than its own time. A wire carries one
    message after another. Ranks that share network adapters average in turns.

    So no step takes less in the long run, though the first ones may: bursts, and averages that may
    take a whole step, let what is behind catch up later.
    """
    wires, turns = defaultdict[str, float](float), defaultdict[int, float](float)
    coded = [0.0] * len(costs.forward_s)  # by stage, for a micro-batch
    worked = [0.0] * len(coded)
    for hops, step in ((costs.activations, 1), (costs.gradients, -1)):
        for stage, hop in enumerate(hops):
            if hop is not None:
                wires[hop.wire] += plan.microbatches * hop.occupied_s
                coded[stage] += hop.encode_s
                coded[stage + step] += hop.decode_s
                worked[stage] += hop.work_s
                worked[stage + step] += hop.work_s
    ranks = []
    for rank in range(plan.pp):
        own = plan.stages_of(rank)
        averages_s = [sum(bucket.seconds for bucket in costs.buckets[stage]) for stage in own]
        turns[costs.turns[rank] if costs.turns else rank] += sum(averages_s)
        passes_s = sum(costs.forward_s[s] + costs.backward_s[s] + coded[s] for s in own)
        waits_s = 0.0
        for stage, average_s in zip(own, averages_s, strict=True):
            hidden_s = 0.0 if plan.sync == "blocking" else costs.backward_s[stage]
            waits_s += 0.0 if plan.staleness else max(0.0, average_s - hidden_s)
        worked_s = plan.microbatches * sum(worked[stage] for stage in own)
        worked_s += costs.averaging_work * sum(averages_s)
        beside_s = max(waits_s, worked_s / max(1.0, costs.averaging_work))
        ranks.append(plan.microbatches * passes_s + beside_s + costs.update_s[rank])
    return max(*ranks, *wires.values(), *turns.values())


def _arrives_s(hop: Hop | None) -> float:
    """Return the seconds from the end of a pass to the start of the one that a message is for."""
    if hop is None:
        return 0.0
    wire_s = max(0.0, hop.occupied_s - hop.burst_s) + hop.latency_s
    return hop.encode_s + wire_s + hop.decode_s


def _plan(**fields: Any) -> ParallelPlan:
    """Return a plan of which only ``fields`` count."""
    return ParallelPlan(**fields)


class _Rank(NamedTuple):
    """What a rank of a pipeline does at least, in seconds."""

    passes_s: float  #: of one micro-batch, forward and backward
    backward_s: float  #: of them, backward
    flushed_s: float  #: of a step with a flush: by itself, and before and after by other ranks
    wire_s: float  #: of the messages of one micro-batch to the next rank
    averages_s: float  #: of its gradients over replicas, in the fastest form but the next one
    factors_s: float  #: of their factors, with powersgd: half of it is in the update


class _Averages(NamedTuple):
    """What averaging the gradients of a step takes at least, in seconds."""

    by_rank_s: list[float]  #: in the fastest form but powersgd; infinite if there is none
    factors_s: list[float]  #: by rank, with powersgd; infinite without
    in_turns_s: float  #: of ranks that average one after another


class _Ways(NamedTuple):
    """The ways in which plans may communicate, of which the fastest counts."""

    tensor: tuple[tuple[int, bool], ...]  #: stride of tp ranks, and whether there is sp
    averages: tuple[tuple[int, int, bool, int, str], ...]
    #: strides of replicas and of pp ranks, whether replicas shard, those that share a copy, and the
    #: form of gradients
    neighbours: tuple[int, ...]  #: stride of pp ranks
    messages: tuple[tuple[bool, str], ...]  #: whether there is sp, and compression

    @classmethod
    def of(cls, plan: ParallelPlan) -> _Ways:
        """Return those of ``plan``."""
        return cls(
            ((axis_stride(plan, "tp"), plan.sp),),
            (
                (
                    axis_stride(plan, "dp"),
                    axis_stride(plan, "pp"),
                    plan.zero > 0,
                    plan.shards,
                    plan.gradients,
                ),
            ),
            (axis_stride(plan, "pp"),),
            ((plan.sp, plan.links),),
        )


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
        self._sums, self._averages = cache(self._running_sums), cache(self._averages_s)
        self._tensor, self._averaging = cache(self._tensor_s), cache(self._averaging_s)
        self._sent, self._wire = cache(self._sent_bytes), cache(self._fastest_wire_s)
        self._ways, self._gradients = cache(self._all_ways), cache(self._running_gradients)

    def microbatch(self, layout: Layout, pipeline: Pipeline) -> int:
        """Return the samples of a micro-batch."""
        batch = self._candidates.config.global_batch_size
        return batch // layout.dp // pipeline.microbatches

    def at_least_s(
        self, layout: Layout, pipeline: Pipeline, plan: ParallelPlan | None = None
    ) -> float:
        """Return seconds that a step takes at least, by its busiest rank or wire.

        That is under ``plan`` or, if None, under all plans of the group. A rank computes the passes
        of all its stages for all micro-batches. Of what tensor parallelism splits it computes its
        part, and adds up activations with its group. It sends each micro-batch to the next rank.
        Gradients are averaged, or at least scattered, from its last backward passes on; by ranks of
        a node that share its network adapters, in turns. With a flush, rank r also waits: its first
        pass needs those of the stages before its first one, which are on other ranks, and these
        compute their backward passes after its last one, before the next step begins. Where
        backward passes are split, others wait for the halves that compute gradients of inputs only.
        Recomputation, updates and all other communication come on top.
        """
        ways = self._ways(layout) if plan is None else _Ways.of(plan)
        pipeline = pipeline._replace(cuts=self.cuts(layout, pipeline))
        averages = self._averages(layout, pipeline._replace(microbatches=1), ways.averages)
        number, most = pipeline.microbatches, 0.0
        for rank in self._ranks(layout, pipeline, averages, ways):
            passes_s = number * rank.passes_s
            most = max(most, passes_s, rank.flushed_s, number * rank.wire_s)
            averages_s = min(rank.averages_s, rank.factors_s)
            if pipeline.staleness:
                hidden_s = max(passes_s, rank.averages_s)
                most = max(most, min(hidden_s, passes_s + rank.factors_s / 2))
            else:
                most = max(most, passes_s + max(0.0, averages_s - rank.backward_s))
        return max(most, averages.in_turns_s)

    def _all_ways(self, layout: Layout) -> _Ways:
        """Return all ways that plans of ``layout`` have: every order of axes, and all methods."""
        dp, tp, pp = layout
        replicas = [(False, 1), (True, dp)]
        if (near := self._candidates.near_replicas(layout)) is not None:
            replicas.append((True, near))
        sp = (False, True) if tp > 1 else (False,)
        orders = (
            _plan(dp=dp, tp=tp, pp=pp, order=order) for order in self._candidates.orders(layout)
        )
        strides = {tuple(axis_stride(each, axis) for axis in ("dp", "tp", "pp")) for each in orders}
        return _Ways(
            tuple(product({tensor for _, tensor, _ in strides}, sp)),
            tuple(
                (stride, between, *way, form)
                for stride, between in {(replica, rank) for replica, _, rank in strides}
                for way in replicas
                for form in self._candidates.gradients
            ),
            tuple({rank for _, _, rank in strides}),
            tuple(product(sp, self._candidates.links)),
        )

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

    def _ranks(
        self, layout: Layout, pipeline: Pipeline, averages: _Averages, ways: _Ways
    ) -> Iterator[_Rank]:
        """Yield what each rank of the pipeline does."""
        samples = self.microbatch(layout, pipeline)
        tensor = ways.tensor if layout.tp > 1 else _ALONE
        forward, both = self._sums(samples, layout.tp, tensor)
        edges = (0, *pipeline.cuts, len(self._units))
        schedule = SCHEDULES.get(pipeline.schedule or "")
        splits = schedule is not None and schedule.split_backward
        placed = self._placed(layout, pipeline)
        for rank, own in enumerate(placed):
            passes_s = sum(both[edges[stage + 1]] - both[edges[stage]] for stage in own)
            forward_s = sum(forward[edges[stage + 1]] - forward[edges[stage]] for stage in own)
            after = placed[rank + 1] if rank + 1 < len(placed) else ()
            sizes = [
                self._sent(edges[stage + 1] - 1, samples, layout.tp, ways.messages)
                for stage in own
                if stage + 1 in after
            ]
            wire_s = self._wire(sum(sizes), rank, ways.neighbours) if sizes else 0.0
            first, backward_s, flushed_s = edges[min(own)], passes_s - forward_s, 0.0
            if pipeline.flush and not splits:
                flushed_s = both[first] + pipeline.microbatches * passes_s
            elif pipeline.flush and rank:  # the halves that compute gradients of inputs count
                back_s = both[first] - both[edges[1]] - (forward[first] - forward[edges[1]])
                own_s = pipeline.microbatches * (forward_s + backward_s / 2)
                flushed_s = forward[first] + own_s + back_s / 2
            averages_s, factors_s = averages.by_rank_s[rank], averages.factors_s[rank]
            yield _Rank(passes_s, backward_s, flushed_s, wire_s, averages_s, factors_s)

    @staticmethod
    def _placed(layout: Layout, pipeline: Pipeline) -> list[tuple[int, ...]]:
        """Return the stages of each rank."""
        if pipeline.schedule is None:
            return [(0,)]
        placement = SCHEDULES[pipeline.schedule].placement
        return [placement(rank, layout.pp, pipeline.stages) for rank in range(layout.pp)]

    def _running_sums(
        self, samples: int, tp: int, ways: tuple[tuple[int, bool], ...]
    ) -> tuple[list[float], list[float]]:
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

    def _averages_s(
        self, layout: Layout, pipeline: Pipeline, ways: tuple[tuple[int, int, bool, int, str], ...]
    ) -> _Averages:
        """Return what averaging takes in the fastest of ``ways``; of ``pipeline``, by its cuts."""
        own = self._network
        links = (own.inside, own.between, own.inside_collectives, own.between_collectives)
        bursts = any(link.burst_bytes for link in links if link)  # which shorten every bucket
        if layout.dp == 1 or bursts:
            return _Averages([0.0] * layout.pp, [0.0] * layout.pp, 0.0)
        edges = (0, *pipeline.cuts, len(self._units))
        placed = self._placed(layout, pipeline)
        none = [inf] * layout.pp
        plain, factors, in_turns_s = [none], [none], []
        for stride, between, zero, shards, form in ways:
            sums = self._gradients(layout.tp, form, shards if zero else None)
            sizes = (
                sum(sums[edges[stage + 1]] - sums[edges[stage]] for stage in own) for own in placed
            )
            by_rank_s = [
                self._averaging(size, layout, stride, between, zero, shards) for size in sizes
            ]
            (factors if form == "powersgd" else plain).append(by_rank_s)
            share = 0.5 if form == "powersgd" else 1.0  # its second factors: in the update
            in_turns_s.append(share * self._longest_turn_s(by_rank_s, layout, stride, between))
        return _Averages(
            [min(each) for each in zip(*plain, strict=True)],
            [min(each) for each in zip(*factors, strict=True)],
            min(in_turns_s),
        )

    def _running_gradients(self, tp: int, form: str, shard: int | None) -> list[float]:
        """Return running sums over units of the bytes of gradients that replicas average."""
        zero, precision = int(shard is not None), self._candidates.precision
        plan = _plan(tp=tp, gradients=form, zero=zero, shard=shard, precision=precision)
        return [0.0, *accumulate(gradient_bytes(plan, unit) for unit in self._units)]

    def _longest_turn_s(
        self, by_rank_s: list[float], layout: Layout, stride: int, between: int
    ) -> float:
        """Return the sum over the ranks of a pipeline on one node that share network adapters."""
        if self._network.group(layout.dp, stride).adapters >= 1:
            return max(by_rank_s)
        sums = defaultdict[int, float](float)
        for rank, seconds in enumerate(by_rank_s):
            sums[rank * between // self._network.devices_per_node] += seconds
        return max(sums.values())

    def _averaging_s(
        self, size: float, layout: Layout, stride: int, between: int, zero: bool, shards: int
    ) -> float:
        """Return the seconds of an all-reduce, or of what sharding does of it before the update.

        The ranks of a pipeline that are on one node share its adapters: who has a turn, has them.
        """
        if zero:
            over = self._network.group(layout.dp // shards, stride * shards)
            scatter_s = reduce_scatter(size, self._network.group(shards, stride)).seconds
            return scatter_s + all_reduce(size / shards, over).seconds
        group = self._network.group(layout.dp, stride)
        if group.adapters < 1:
            together = max(1, min(layout.pp, self._network.devices_per_node // between))
            group = replace(group, adapters=min(1.0, group.adapters * together))
        return all_reduce(size, group).seconds

    def _sent_bytes(
        self, unit: int, samples: int, tp: int, ways: tuple[tuple[bool, str], ...]
    ) -> int:
        """Return the bytes of a message with the outputs of a unit, in the smallest form."""
        return min(
            message_bytes(_plan(tp=tp, sp=sp, links=links), self._units, unit, samples)
            for sp, links in ways
        )

    def _fastest_wire_s(self, size: int, rank: int, strides: tuple[int, ...]) -> float:
        """Return for how long messages to the next rank of a pipeline occupy a wire at least.

        Together they have ``size`` bytes.
        """
        hops = (self._network.hop(rank * each, (rank + 1) * each, each) for each in strides)
        return min(size / hop.own_bytes_per_s for hop in hops)
