"""The fields of a parallel plan, from which text, help, completion and docs are derived."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping  # noqa: TC003 - resolved below with the annotations
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from hybridperf.plan.schedules import SCHEDULES, Schedule

__all__ = ["FIELDS", "LARGEST_NUMBER", "Field", "PlanFields"]

LARGEST_NUMBER: Final = 999_999

BatchNormMode = Literal["micro", "deferred", "sync"]
AxisOrder = Literal["pp-dp-tp", "pp-tp-dp", "dp-pp-tp", "dp-tp-pp", "tp-pp-dp", "tp-dp-pp"]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata in a field's annotation."""

    meaning: str
    default: str | None = None  #: default in words, if it depends on other fields
    words: Mapping[str, Any] | None = None  #: values by word, if the type does not define them
    minimum: int = 1  #: smallest number
    chip: str = "{name} {word}"  #: template for web pages
    slug: str = "{name}{word}"  #: template for file names
    equivalent: bool = True
    #: False if values other than the default are not equivalent to single-process training


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a plan: name, default, accepted values and metadata."""

    name: str
    default: Any
    words: Mapping[str, Any]  #: values by word
    takes_numbers: bool  #: whether integers are accepted, too
    takes_series: bool  #: whether increasing integers separated by "-" are accepted, too
    metadata: Metadata

    def admits(self, value: object) -> bool:
        """Return whether ``value`` is valid for this field."""
        if self.takes_numbers and type(value) is int and self.metadata.minimum <= value:
            return value <= LARGEST_NUMBER
        if self.takes_series and type(value) is tuple and value:
            numbers = all(type(each) is int for each in value)
            if not numbers or list(value) != sorted(set(value)):
                return False
            return all(self.metadata.minimum <= each <= LARGEST_NUMBER for each in value)
        return any(
            type(value) is type(each) and value == each
            for each in (self.default, *self.words.values())
        )

    def word(self, value: object) -> str:
        """Return ``value`` as written in a plan's text."""
        for word, each in self.words.items():
            if type(value) is type(each) and value == each:
                return word
        return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def values(self) -> tuple[str, ...]:
        """Return the accepted values as listed in docs and help."""
        minimum = self.metadata.minimum
        numbers = (f"{minimum}", f"{minimum + 1}", "...") if self.takes_numbers else ()
        series = (f"{minimum}-{minimum + 1}-...",) if self.takes_series else ()
        return (*self.words, *numbers, *series)


@dataclass(frozen=True, slots=True)
class PlanFields:
    """The fields of a plan: ``dp`` replicas, each a pipeline of ``pp`` x ``cp`` x ``tp`` ranks."""

    dp: Annotated[
        int, Metadata("data parallel: number of replicas, each with its share of the batch")
    ] = 1
    sync: Annotated[
        Literal["overlapped", "blocking"],
        Metadata(
            "when replicas average gradients: during the backward pass, or after it",
            slug="{word}",
        ),
    ] = "overlapped"
    gradients: Annotated[
        Literal["fp32", "bf16", "powersgd"],
        Metadata(
            "compression of the gradient all-reduce: none, rounding to bf16, or PowerSGD of rank 4",
            equivalent=False,
        ),
    ] = "fp32"
    balance: Annotated[
        Literal["none", "tokens"],
        Metadata(
            "which samples of a batch a replica trains on: the next in order, or those that give "
            "all replicas equal numbers of tokens",
            chip="balanced {word}",
            slug="{name}-{word}",
        ),
    ] = "none"
    zero: Annotated[
        Literal[0, 1, 2, 3],
        Metadata("ZeRO stage: shard optimizer state (1), gradients too (2), parameters too (3)"),
    ] = 0
    shard: Annotated[
        int | None,
        Metadata(
            "replicas in a sharding group; fewer than dp: hybrid sharding (HSDP)",
            default="`dp`",
            minimum=2,
        ),
    ] = None
    offload: Annotated[
        Literal["none", "cpu"],
        Metadata("device that keeps the shards of zero between uses and runs the optimizer"),
    ] = "none"
    tp: Annotated[
        int,
        Metadata("tensor parallel: ranks over which the model's linear layers are split"),
    ] = 1
    sp: Annotated[
        bool,
        Metadata("sequence parallel: each tp rank holds a part of the tokens between split layers"),
    ] = False
    tensor: Annotated[
        Literal["1d", "2d", "2.5d", "3d"],
        Metadata(
            "layout of tensor parallelism: weights split over a line of ranks, or weights and "
            "activations over a square, a square times a depth, or a cube of ranks",
            slug="{word}",
        ),
    ] = "1d"
    cp: Annotated[
        int,
        Metadata(
            "context parallel: ranks over which the tokens of each sample are split, with "
            "attention in a ring"
        ),
    ] = 1
    pp: Annotated[int, Metadata("pipeline parallel: ranks in each replica's pipeline")] = 1
    schedule: Annotated[
        str | None,
        Metadata(
            "order of a pipeline's passes",
            default=f"`{next(iter(SCHEDULES))}` where `pp` > 1",
            words={name: name for name in SCHEDULES},
            chip="{word}",
            slug="{word}",
        ),
    ] = None
    stages: Annotated[
        int,
        Metadata(
            "pipeline stages on each rank",
            default="the schedule's",
            chip="{word} stages a rank",
        ),
    ] = 1
    cut: Annotated[
        Literal["minimax", "uniform", "parameters", "prefix_nearest", "ampa"],
        Metadata(
            "how the model is partitioned into stages",
            chip="cut by {word}",
            slug="{name}-{word}",
        ),
    ] = "minimax"
    cuts: Annotated[
        tuple[int, ...],
        Metadata(
            "partition by hand: number of units before each stage but the first",
            default="from `cut`",
            slug="{name}-{word}",
        ),
    ] = ()
    microbatches: Annotated[
        int,
        Metadata(
            "micro-batches of a replica's batch; without a pipeline: gradient accumulation",
            default="`pp`",
            chip="{word} micro-batches",
            slug="m{word}",
        ),
    ] = 1
    staleness: Annotated[
        int,
        Metadata(
            "steps between the weights that a gradient is computed with and its update",
            minimum=0,
            equivalent=False,
        ),
    ] = 0
    flush: Annotated[
        bool,
        Metadata("pipeline flush: all passes of a step end before the next step begins"),
    ] = True
    links: Annotated[
        Literal["none", "bf16", "int8", "topk"],
        Metadata(
            "compression of activations and gradients sent between stages: none, rounding to bf16 "
            "or int8, or the largest 10 % (top-k)",
            equivalent=False,
        ),
    ] = "none"
    recompute: Annotated[
        int,
        Metadata(
            "activation recomputation (checkpointing): no unit, every unit, or every k-th unit",
            words={"none": 0, "full": 1},
            slug="r{word}",
        ),
    ] = 0
    precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16"],
        Metadata(
            "precision of matrix products and convolutions; weights stay in fp32, fp16 scales the "
            "loss",
            chip="{word}",
            slug="{word}",
        ),
    ] = "fp32"
    compile: Annotated[bool, Metadata("compile each unit with torch.compile")] = False
    bn: Annotated[BatchNormMode, Metadata("scope of BatchNorm statistics")] = "micro"
    order: Annotated[
        AxisOrder,
        Metadata(
            "order of the mesh axes, outermost first: ranks along the last axis are neighbours",
            slug="{name}-{word}",
        ),
    ] = "pp-dp-tp"

    @property
    def ranks(self) -> int:
        """Return the number of ranks that the plan needs."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def tensor_axes(self) -> Mapping[str, int]:
        """Return the size of each axis of `tensor`'s arrangement of the ``tp`` ranks.

        Outermost first; empty under ``1d``, or if the ranks do not form the arrangement. The order
        is that in which a dimension of a weight is split over several axes.
        """
        if self.tensor == "2d" and (side := math.isqrt(self.tp)) ** 2 == self.tp > 1:
            return {"i": side, "j": side}
        if self.tensor == "2.5d":
            for side in range(math.isqrt(self.tp // 2), 1, -1):
                if self.tp % side**2 == 0:
                    return {"e": self.tp // side**2, "i": side, "j": side}
        if self.tensor == "3d" and (side := round(self.tp ** (1 / 3))) ** 3 == self.tp > 1:
            return {"j": side, "k": side, "i": side}
        return {}

    @property
    def tensor_batch_axes(self) -> tuple[str, ...]:
        """Return the axes of `tensor_axes` that split the batch between units, outermost first."""
        axes = {"1d": (), "2d": ("i",), "2.5d": ("e", "i"), "3d": ("i", "j")}
        return axes[self.tensor] if self.tensor_axes else ()

    @property
    def tensor_hidden_axis(self) -> str:
        """Return the axis of `tensor_axes` that splits hidden features between units."""
        return "k" if self.tensor == "3d" else "j"

    @property
    def batch_parts(self) -> int:
        """Return the number of parts into which `tensor` splits a micro-batch between units."""
        return math.prod(self.tensor_axes[axis] for axis in self.tensor_batch_axes)

    @property
    def shards(self) -> int:
        """Return the number of replicas in a sharding group; 1 without ``zero``."""
        return (self.shard or self.dp) if self.zero else 1

    @property
    def pipeline(self) -> Schedule | None:
        """Return the pipeline's `Schedule`; None without a pipeline."""
        return SCHEDULES.get(str(self.schedule))

    @property
    def pipeline_stages(self) -> int:
        """Return the number of stages of a replica's pipeline, over all ranks."""
        return self.pp * self.stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the indices of a pipeline rank's stages, in the model's order."""
        return self.pipeline.placement(rank, self.pp, self.stages) if self.pipeline else (0,)

    @property
    def delays_or_compresses(self) -> bool:
        """Return whether the plan needs our program executor in place of torch's runtimes."""
        return self.staleness > 0 or self.links != "none" or self.gradients == "powersgd"

    @property
    def equivalent(self) -> bool:
        """Return whether the plan is equivalent to one process, up to the order of sums.

        The single process has the same ``precision`` and ``bn``; the log states both.
        """
        return not self.deviations

    @property
    def deviations(self) -> tuple[str, ...]:
        """Return the fields, such as ``gradients=bf16``, that make the plan not `equivalent`."""
        return tuple(
            f"{name}={field.word(value)}"
            for name, field in FIELDS.items()
            if not field.metadata.equivalent and (value := getattr(self, name)) != field.default
        )


def _field_table() -> dict[str, Field]:
    hints = typing.get_type_hints(PlanFields, include_extras=True)
    table = {}
    for each in fields(PlanFields):
        kind, metadata = get_args(hints[each.name])
        words, numbers, series = metadata.words or {}, False, get_origin(kind) is tuple
        kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        if bool in kinds:
            words = {"off": False, "on": True}
        elif get_origin(kind) is Literal:
            words = {str(value): value for value in get_args(kind)}
        else:
            numbers = int in kinds
        table[each.name] = Field(each.name, each.default, words, numbers, series, metadata)
    return table


FIELDS: Final = _field_table()  #: fields by name, in the order of the canonical text
