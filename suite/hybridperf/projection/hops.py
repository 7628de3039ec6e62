"""What messages between the stages of a pipeline cost, and when ranks ask for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hybridperf.projection.simulate import Hop, Receives
from hybridperf.projection.stages import Stages, axis_stride
from hybridperf.projection.traffic import message_bytes

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.link import Network

__all__ = ["stage_hops", "when_received"]


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
        occupied_s = size / link.own_bytes_per_s
        burst_s = link.burst_bytes / link.own_bytes_per_s
        hop = Hop(f"{sender}-{receiver}", occupied_s, link.latency_s, burst_s=burst_s)
        if (work := network.send_work) is not None:
            hop = hop._replace(work_s=work.send_s(size))
        if codec := dict(network.codec_work).get(plan.links):
            plain = replace(plan, links="none")
            coding_s = codec.send_s(message_bytes(plain, stages.table.units, last, microbatch))
            hop = hop._replace(encode_s=hop.encode_s + coding_s, decode_s=hop.decode_s + coding_s)
        hops.append(hop)
    return tuple(hops)


def when_received(plan: ParallelPlan, network: Network) -> Receives | None:
    """Return when ranks ask for messages; None where messages do not wait for that.

    Gloo starts a message once its receiver has asked for it. Torch's pipelines ask as they wait,
    over the connection that has what they send; programs have one for each direction, and ask for
    the next message, too.
    """
    if network.library != "gloo":
        return None
    programs = plan.delays_or_compresses
    return Receives(ahead=int(programs), in_turn=not programs)
