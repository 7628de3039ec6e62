"""Costs of a plan's actions by stage, from unit times, collectives and messages.

With lower bounds on the step time by these costs.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.projection.exchanges import (
    arranged_gradient_bytes,
    arranged_tensor_bytes,
    context_parallel_bytes,
    tensor_parallel_bytes,
)
from hybridperf.projection.network import Cost, all_gather, all_reduce, reduce_scatter
from hybridperf.projection.simulate import Bucket, Costs, Hop
from hybridperf.projection.traffic import (
    Stages,
    axis_stride,
    gradient_bytes,
    gradient_compression_s,
    held_parameters,
    link_codec_s,
    message_bytes,
    parameter_bytes,
    parameter_gathers,
    replicated_bytes,
    shared_elements,
    shared_sums,
    token_gradient_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.exchanges import (
        PassBytes,
        RingBytes,
        TensorBytes,
    )
    from hybridperf.projection.network import Network, RankGroup
    from hybridperf.projection.units import UnitCounts, UnitTable, UnitTimes

__all__ = [
    "ExchangeSeconds",
    "PlanCosts",
    "busiest_s",
    "exchange_s",
    "plan_at_least_s",
    "plan_costs",
    "token_share",
    "work_share",
]


def _stage_hops(
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


_MIB: Final = 2**20
# DistributedDataParallel closes a bucket of gradients that has reached 25 MiB, the first one at 1
# MiB (Li et al. 2020). The engine's own reducer closes a bucket before it exceeds 8 MiB.
_DDP_BYTES: Final = (1 * _MIB, 25 * _MIB)
_REDUCER_BYTES: Final = 8 * _MIB


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Costs for `simulate`, and the exposed communication in passes and updates."""

    costs: Costs
    passes_exposed_s: tuple[float, ...]
    #: exposed communication in the passes of one micro-batch, by rank
    update_exposed_s: tuple[float, ...]  #: exposed communication in an update, by rank
    runtime_s: tuple[float, ...]
    #: overhead of software and compression in averaging gradients, in an update, by rank


class _UnitCost(NamedTuple):
    """Seconds of one unit on one rank."""

    forward_s: float
    backward_s: float  #: backward pass with recomputation
    exposed_s: float  #: exchanges of tensor and context parallelism in both passes
    gather: Cost  #: all-gather of its parameters
    scatter: Cost  #: reduce-scatter of its gradients, and their average over replicas of a shard
    gradient_bytes: float


def plan_costs(
    plan: ParallelPlan,
    units: UnitTable,
    times: UnitTimes,
    network: Network,
    cuts: Sequence[int],
    *,
    clips: bool = False,
) -> PlanCosts:
    """Return the costs of ``plan`` for micro-batches of ``times.microbatch`` samples.

    ``cuts`` are the first units of each stage but the first. ``clips`` says whether the gradient's
    norm over all stages is computed in each step.
    """
    stages = Stages(plan, units, cuts)
    each = [list(_unit_costs(plan, times, network, stages, n)) for n in range(len(stages.units))]
    ranks = range(plan.pp)
    shards_once = plan.zero == 1 or (plan.zero == 2 and plan.microbatches == 1)
    in_pass = plan.zero > 0 and not shards_once
    passes = [_passes(plan, own, network, in_pass=in_pass) for own in each]
    loss = [0.0] * (len(each) - 1) + [times.loss_s]
    pass_s = network.pass_s if plan.pp > 1 else 0.0
    buckets = _buckets(plan, network, each, in_pass=in_pass)
    codecs_s = [link_codec_s(plan, times, stages, stage) for stage in range(len(each))]
    forward_s = tuple(
        one.forward_s + coding_s + pass_s
        for one, (coding_s, _) in zip(passes, codecs_s, strict=True)
    )
    backward_s = tuple(
        one.backward_s + last + coding_s + pass_s
        for one, last, (_, coding_s) in zip(passes, loss, codecs_s, strict=True)
    )
    updates, exposed, runtime_s = zip(
        *(
            _update(plan, times, network, stages, each, buckets, rank, gathers=shards_once)
            for rank in ranks
        ),
        strict=True,
    )
    costs = Costs(
        forward_s=forward_s,
        backward_s=backward_s,
        # The first stage needs no gradient of its inputs: torch leaves all to the other half.
        input_s=(0.0, *(one / 2 for one in backward_s[1:])),
        weight_s=(backward_s[0], *(one / 2 for one in backward_s[1:])),
        activations=_stage_hops(plan, network, stages, times.microbatch, forth=True),
        gradients=_stage_hops(plan, network, stages, times.microbatch, forth=False),
        buckets=buckets,
        update_s=updates,
        turns=_turns(plan, network),
        clip_s=_clip_s(plan, network, stages, clips=clips or plan.precision == "fp16"),
        averaging_work=network.averaging_work,
    )
    by_rank = tuple(
        sum(passes[stage].exposed_s for stage in plan.stages_of(rank)) for rank in ranks
    )
    return PlanCosts(costs, by_rank, exposed, runtime_s)


def _unit_costs(
    plan: ParallelPlan, times: UnitTimes, network: Network, stages: Stages, stage: int
) -> Iterator[_UnitCost]:
    """Yield the costs of the units of ``stage``."""
    shard, replicate = stages.replica_groups(network)
    stride = axis_stride(plan, "tp")
    for number in stages.units[stage]:
        unit = stages.table.units[number]
        share = work_share(plan, stages.alone[number])
        compute_s, repeats = times.forward_s[number] * share, number in stages.recomputed
        forward_s, backward_s, again_s = exchange_s(
            plan,
            network,
            stages.table.units,
            number,
            times.microbatch,
            stride,
            begins_stage=number == stages.units[stage][0],
        )
        own_bytes = gradient_bytes(plan, unit)
        gather, scatter = Cost(0.0, 0.0), Cost(0.0, 0.0)
        if plan.zero:
            gather = all_gather(parameter_bytes(plan, unit), shard)
            scatter = reduce_scatter(own_bytes, shard)
            over = all_reduce(own_bytes / plan.shards, replicate)
            scatter = Cost(scatter.seconds + over.seconds, scatter.sent_bytes + over.sent_bytes)
        yield _UnitCost(
            compute_s + forward_s,
            times.backward_s[number] * share + backward_s + repeats * (compute_s + again_s),
            forward_s + backward_s + repeats * again_s,
            gather,
            scatter,
            own_bytes,
        )


class ExchangeSeconds(NamedTuple):
    """Seconds of the exchanges in tp and cp groups for a micro-batch in a unit."""

    forward_s: float
    backward_s: float
    again_s: float  #: in the forward pass that recomputation repeats


_NO_EXCHANGE: Final = ExchangeSeconds(0.0, 0.0, 0.0)


def exchange_s(
    plan: PlanFields,
    network: Network,
    units: Sequence[UnitCounts],
    number: int,
    microbatch: int,
    stride: int,
    *,
    begins_stage: bool = False,
) -> ExchangeSeconds:
    """Return the seconds of the exchanges of tensor and context parallelism in unit ``number``.

    ``stride`` is how far apart neighbours on the axis ``tp`` are. All are exposed: the collectives
    of ``tp``, and all messages of the ring, although attention hides some keys and values.
    """
    if plan.tp * plan.cp == 1:
        return _NO_EXCHANGE
    if plan.tensor == "1d":
        split = tensor_parallel_bytes(plan, units, number, microbatch, begins_stage=begins_stage)
        sent: Mapping[str, TensorBytes] = {"tp": split}
    else:
        sent = arranged_tensor_bytes(plan, units, number, microbatch)
    groups, seconds = _tensor_groups(plan, stride), [0.0, 0.0, 0.0]  # by pass
    for axis, passes in sent.items():
        for index, each in enumerate(passes):
            seconds[index] += _collective_s(each, network, *groups[axis])
    if plan.cp > 1 and (unit := units[number]).tokens:
        most = token_share(plan, unit) * plan.cp  # tokens of the longest message over the mean
        messages = (plan.cp - 1, 2 * plan.cp - 1, plan.cp - 1)
        ring = context_parallel_bytes(plan, units, number, microbatch)
        for index, one in enumerate(ring):
            longest = one._replace(ring=one.ring * most)
            seconds[index] += _ring_s(longest, messages[index], network, plan.cp, stride * plan.tp)
    return ExchangeSeconds(*seconds)


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _collective_s(sent: PassBytes, network: Network, ranks: int, stride: int) -> float:
    """Return the seconds of the collectives of a group of ranks in a pass."""
    return sent.seconds(network.group(ranks, stride))


@functools.lru_cache(maxsize=10_000)  # as above
def _ring_s(sent: RingBytes, messages: int, network: Network, ranks: int, stride: int) -> float:
    """Return the seconds of so many messages to the next rank in a pass, and of its all-gather."""
    last = (ranks - 1) * stride  # the rank that sends to the first one, from another node if any is
    link = network.hop(last, 0, stride)
    seconds = messages * link.latency_s + sent.ring / link.own_bytes_per_s
    if sent.gathered:
        seconds += all_gather(sent.gathered, network.group(ranks, stride)).seconds
    return seconds


def _tensor_groups(plan: PlanFields, stride: int) -> dict[str, tuple[int, int]]:
    """Return the number of ranks of a group and their stride, by axis: ``tp``, and those of tensor.

    ``stride`` is how far apart neighbours on the axis ``tp`` are.
    """
    groups, inner = {"tp": (plan.tp, stride)}, stride
    for axis, size in reversed([*plan.tensor_axes.items()]):
        groups[axis] = size, inner
        inner *= size
    return groups


def work_share(plan: PlanFields, unit: UnitCounts) -> float:
    """Return the share of a unit's passes that one rank of the tp and cp groups computes.

    Of what 1D tensor parallelism does not split, each rank computes the whole; other layouts split
    all of a unit with tokens. A rank of a cp group computes attention of its own tokens to all, the
    first rank of the most tokens. Overhead of layers is divided, too, which favours many ranks.
    """
    split = unit.tp_parameters / (unit.parameters or 1)
    if plan.tensor != "1d" and unit.tokens:
        return 1 / plan.tp
    share = 1 - split * (1 - 1 / plan.tp)
    return share * token_share(plan, unit)


def token_share(plan: PlanFields, unit: UnitCounts) -> float:
    """Return the largest share of a sample's tokens that a rank of a cp group has in ``unit``."""
    return -(-unit.tokens // plan.cp) / unit.tokens if unit.tokens else 1.0


class _Passes(NamedTuple):
    forward_s: float
    backward_s: float
    exposed_s: float


def _passes(
    plan: ParallelPlan, units: Sequence[_UnitCost], network: Network, *, in_pass: bool
) -> _Passes:
    """Return the seconds of a stage's passes; ``in_pass``: parameters are gathered in each."""
    forward_s = sum(unit.forward_s for unit in units)
    backward_s = sum(unit.backward_s for unit in units)
    exposed_s = sum(unit.exposed_s for unit in units)
    if not in_pass:
        return _Passes(forward_s, backward_s, exposed_s)
    gathers = [unit.gather.seconds for unit in units]
    again = gathers[::-1] if plan.zero == 3 else [0.0] * len(units)
    # In a pipeline gradients are scattered once a step, after the last backward pass.
    scatters = [unit.scatter.seconds for unit in reversed(units)]
    if plan.pp > 1:
        scatters = [0.0] * len(units)
    overlaps = network.library == "nccl"
    both = [
        _in_streams([unit.forward_s for unit in units], gathers, [], overlaps=overlaps),
        _in_streams([u.backward_s for u in reversed(units)], again, scatters, overlaps=overlaps),
    ]
    return _Passes(both[0], both[1], exposed_s + sum(both) - forward_s - backward_s)


def _in_streams(
    computes: Sequence[float], befores: Sequence[float], afters: Sequence[float], *, overlaps: bool
) -> float:
    """Return the seconds of units that each gather before they compute, and scatter after.

    FSDP gathers the parameters of the next unit while one computes, and scatters the gradients of
    the last one, each in a stream; over gloo it does one thing at a time.
    """
    if not overlaps:
        return sum(computes) + sum(befores) + sum(afters)
    begun = computed = gathered = scattered = 0.0
    for number, compute in enumerate(computes):
        gathered = max(gathered, begun) + befores[number]
        begun = max(computed, gathered)
        computed = begun + compute
        if afters:
            scattered = max(scattered, computed) + afters[number]
    return max(computed, scattered)


def _update(
    plan: ParallelPlan,
    times: UnitTimes,
    network: Network,
    stages: Stages,
    each: Sequence[Sequence[_UnitCost]],
    buckets: Sequence[Sequence[Bucket]],
    rank: int,
    *,
    gathers: bool,
) -> tuple[float, float, float]:
    """Return the seconds of a rank's update, of them exposed communication, and its runtime's.

    Parameters that stay whole for a step are gathered in its first forward pass, right after the
    update, with which they are counted.
    """
    seconds = 0.0
    own = [number for stage in plan.stages_of(rank) for number in stages.units[stage]]
    for number in own:
        alone, unit = stages.alone[number], stages.table.units[number]
        copied = shared_elements(unit) / (alone.parameters or 1)  # whole, whatever is sharded
        others = unit.parameters / alone.parameters - copied if alone.parameters else 1.0
        update_s = times.update_s[number] * held_parameters(plan, alone) / (alone.parameters or 1)
        seconds += update_s * others / plan.shards + update_s * copied
    seconds += _shared_sums_s(plan, network, stages, rank)
    exposed = 0.0
    costs = [unit for stage in plan.stages_of(rank) for unit in each[stage]]
    if gathers:
        forward_s = [unit.forward_s for unit in costs]
        overlaps = network.library == "nccl"
        gathered = [unit.gather.seconds for unit in costs]
        exposed = _in_streams(forward_s, gathered, [], overlaps=overlaps) - sum(forward_s)
    if plan.gradients == "powersgd":  # the second factors, once the first ones are averaged
        group = network.group(plan.dp, axis_stride(plan, "dp"))
        exposed += all_reduce(sum(unit.gradient_bytes for unit in costs) / 2, group).seconds
    exposed += _small_averages_s(plan, network, stages, own)
    runtime_s = _averaging_work_s(plan, network, stages, buckets, rank)
    runtime_s += gradient_compression_s(plan, times, (stages.table.units[n] for n in own))
    return seconds + exposed + runtime_s, exposed, runtime_s


def _shared_sums_s(plan: ParallelPlan, network: Network, stages: Stages, rank: int) -> float:
    """Return the seconds in which ``rank`` adds up gradients with other copies of parameters."""
    seconds, stride = 0.0, axis_stride(plan, "pp")
    for size, ranks in shared_sums(stages):
        if rank in ranks:
            on_one_node = stride * plan.pp <= network.devices_per_node
            apart = 1 if on_one_node else (ranks[-1] - ranks[0]) // (len(ranks) - 1)
            seconds += all_reduce(size, network.group(len(ranks), stride * apart)).seconds
    return seconds


def _small_averages_s(
    plan: ParallelPlan, network: Network, stages: Stages, own: Sequence[int]
) -> float:
    """Return the seconds of averages of replicated tensors of the units ``own`` after all passes.

    They are the gradients that sharding leaves whole, and the gradients of parameters that saw only
    the tokens or the samples of a rank.
    """
    if not (plan.zero or plan.sp or plan.cp > 1 or plan.tensor != "1d"):
        return 0.0
    units = [stages.table.units[number] for number in own]
    seconds = 0.0
    if replicated := sum(replicated_bytes(plan, unit) for unit in units):
        seconds += sum(
            all_reduce(replicated, group).seconds for group in stages.replica_groups(network)
        )
    groups = _tensor_groups(plan, axis_stride(plan, "tp"))
    sums: defaultdict[str, float] = defaultdict(float)
    for unit in units:
        for axis, size in arranged_gradient_bytes(plan, unit).items():
            sums[axis] += size
    seconds += sum(
        all_reduce(size, network.group(*groups[axis])).seconds for axis, size in sums.items()
    )
    if of_tokens := sum(token_gradient_bytes(plan, unit) for unit in units):
        axis = "cp" if plan.cp > 1 else "tp"
        group = network.group(getattr(plan, axis), axis_stride(plan, axis))
        seconds += all_reduce(of_tokens, group).seconds
    return seconds


def _averaging_work_s(
    plan: ParallelPlan,
    network: Network,
    stages: Stages,
    buckets: Sequence[Sequence[Bucket]],
    rank: int,
) -> float:
    """Return the seconds that software adds to the collectives that average gradients of ``rank``.

    FSDP gathers the parameters of each unit as often as passes need them, and scatters gradients.
    """
    count = float(sum(len(buckets[stage]) for stage in plan.stages_of(rank)))
    if plan.zero:
        gathers = sum(parameter_gathers(plan, rank)) / plan.stages
        scatters = plan.microbatches if plan.zero >= 2 and plan.pp == 1 else 1
        count = len(stages.units_of(rank)) * (gathers + scatters)
    elif plan.gradients == "powersgd":  # both factors
        count *= 2
    return count * network.bucket_s if plan.dp > 1 else 0.0


def _buckets(
    plan: ParallelPlan, network: Network, each: Sequence[Sequence[_UnitCost]], *, in_pass: bool
) -> tuple[tuple[Bucket, ...], ...]:
    """Return the gradients that each stage averages from its last backward pass on."""
    if plan.dp == 1 or (in_pass and plan.pp == 1):
        return ((),) * len(each)
    group = network.group(plan.dp, axis_stride(plan, "dp"))
    if turns := _turns(plan, network):
        together = max(turns.count(turn) for turn in turns)
        group = replace(group, adapters=min(1.0, group.adapters * together))
    if plan.sync == "blocking":
        # One all-reduce for all stages of a rank, after all of its passes.
        buckets: list[tuple[Bucket, ...]] = [()] * len(each)
        for rank in range(plan.pp):
            own = plan.stages_of(rank)
            whole = sum(unit.gradient_bytes for stage in own for unit in each[stage])
            buckets[own[-1]] = (Bucket(0.0, all_reduce(whole, group).seconds),)
        return tuple(buckets)
    return tuple(tuple(_overlapped(plan, group, units)) for units in each)


def _turns(plan: ParallelPlan, network: Network) -> tuple[int, ...]:
    """Return the node of each pipeline rank if the ranks of a node share network adapters.

    These ranks average in turns, each at the full bandwidth of the adapters, so that unequal stages
    leave no adapter idle.
    """
    if network.group(plan.dp, axis_stride(plan, "dp")).adapters >= 1:
        return ()
    stride = axis_stride(plan, "pp")
    return tuple(rank * stride // network.devices_per_node for rank in range(plan.pp))


def _overlapped(
    plan: ParallelPlan, group: RankGroup, units: Sequence[_UnitCost]
) -> Iterator[Bucket]:
    """Yield the buckets of a stage, each ready at the end of its first unit's backward pass."""
    before = [0.0, *accumulate(unit.backward_s for unit in units)]
    if plan.gradients == "powersgd":
        yield Bucket(0.0, all_reduce(sum(unit.gradient_bytes for unit in units) / 2, group).seconds)
        return
    if plan.zero or plan.tp > 1:  # FSDP: each unit by itself; in a pipeline, after the pass
        beside = plan.pp == 1 and group.library == "nccl"
        for number in reversed(range(len(units))):
            unit = units[number]
            whole = unit.scatter if plan.zero else all_reduce(unit.gradient_bytes, group)
            yield Bucket(before[number] if beside else 0.0, whole.seconds)
        return
    waiting, first = 0.0, True
    for number in reversed(range(len(units))):
        own = units[number].gradient_bytes
        if plan.delays_or_compresses:
            if waiting and waiting + own > _REDUCER_BYTES:
                yield Bucket(before[number + 1], all_reduce(waiting, group).seconds)
                waiting = 0.0
            waiting += own
            continue
        waiting += own
        if waiting >= _DDP_BYTES[not first]:
            yield Bucket(before[number], all_reduce(waiting, group).seconds)
            waiting, first = 0.0, False
    if waiting:
        yield Bucket(0.0, all_reduce(waiting, group).seconds)


def _clip_s(plan: ParallelPlan, network: Network, stages: Stages, *, clips: bool) -> float | None:
    """Return the seconds of adding up one number over the ranks of a pipeline.

    None for one rank, and for ranks that do not wait for each other before an update. Those with
    copies of a parameter do, without a norm; that others do too is a simplification.
    """
    if plan.pp == 1 or not clips:
        return 0.0 if shared_sums(stages) else None
    return all_reduce(8, network.group(plan.pp, axis_stride(plan, "pp"))).seconds


def plan_at_least_s(plan: ParallelPlan, costs: Costs) -> float:
    """Return a lower bound on the step time of ``plan``, in seconds, by its ``costs``.

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
    """Return the seconds that the busiest rank, wire or network adapter works for a step.

    A rank computes its passes and its update. Averages of a stage begin in its last backward pass
    at the earliest; their exposed part is added, unless they may overlap a whole step. The
    processor time of averages is added too, up to the duration of an average, since a rank may
    spend it while it waits. A wire carries one message at a time. Ranks that share network adapters
    average in turns.

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
    """Return the seconds from the end of a pass to the start of the pass that waits for it."""
    return 0.0 if hop is None else hop.occupied_s + hop.latency_s
