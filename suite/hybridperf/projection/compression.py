"""What compression costs a device whose codecs were not measured: passes over memory, and FLOPs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.fields import FIELDS
from hybridperf.projection.tensor_parallel import FLOAT_BYTES
from hybridperf.projection.traffic import held_parameters, message_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.stages import Stages
    from hybridperf.projection.units import Unit, UnitTimes

__all__ = [
    "GRADIENT_BYTES",
    "LINK_CODEC_BYTES",
    "LinkCodecBytes",
    "gradient_compression_s",
    "link_codec_s",
]


class LinkCodecBytes(NamedTuple):
    """Bytes that a codec of ``links`` reads and writes for each number of a message."""

    encoding: int
    decoding: int


#: by the plan's ``links``, as `tests/engine/test_compression_bytes.py` counts the trainer's; of
#: topk five reads of all numbers, by radix select, which it does not see
LINK_CODEC_BYTES: Final[Mapping[str, LinkCodecBytes]] = {
    "none": LinkCodecBytes(0, 0),
    "bf16": LinkCodecBytes(6, 6),
    "int8": LinkCodecBytes(83, 13),
    "topk": LinkCodecBytes(32, 7),
}
#: by the plan's ``gradients``: bytes read and written for each number, beyond those in fp32
GRADIENT_BYTES: Final[Mapping[str, int]] = {"fp32": 0, "bf16": 8, "powersgd": 44}
#: likewise FLOPs: four products of a matrix with factors of rank 4
GRADIENT_FLOPS: Final[Mapping[str, int]] = {"fp32": 0, "bf16": 0, "powersgd": 4 * 2 * 4}


def gradient_compression_s(plan: ParallelPlan, times: UnitTimes, units: Iterable[Unit]) -> float:
    """Return the seconds of compressing the gradients of ``units`` in a step, and of the reverse.

    FSDP has averages in bf16 cast into its shards, each time that it scatters.
    """
    if plan.dp == 1 or plan.gradients == FIELDS["gradients"].default:
        return 0.0
    elements = sum(held_parameters(plan, unit) for unit in units)
    if plan.zero:
        often = plan.microbatches if plan.zero >= 2 and plan.pp == 1 else 1
        elements *= often / plan.shards
    bytes_s = elements * GRADIENT_BYTES[plan.gradients] * times.codec_byte_s
    return max(bytes_s, elements * GRADIENT_FLOPS[plan.gradients] * times.codec_flop_s)


def link_codec_s(
    plan: ParallelPlan, times: UnitTimes, stages: Stages, stage: int
) -> tuple[float, float]:
    """Return the seconds that codecs of ``links`` add to a stage's forward and backward pass.

    A forward pass decodes what comes from the stage before and encodes what goes to the next one; a
    backward pass does so with the gradients of both.
    """
    if plan.links == FIELDS["links"].default:
        return 0.0, 0.0
    codec, plain = LINK_CODEC_BYTES[plan.links], replace(plan, links="none")
    before_s, after_s = (
        message_bytes(plain, stages.table.units, stages.units[sender][-1], times.microbatch)
        / FLOAT_BYTES
        * times.codec_byte_s
        if 0 <= sender < len(stages.units) - 1
        and stages.rank_of[sender] != stages.rank_of[sender + 1]
        else 0.0
        for sender in (stage - 1, stage)
    )
    return (
        codec.decoding * before_s + codec.encoding * after_s,
        codec.encoding * before_s + codec.decoding * after_s,
    )
