"""The fields of a parallel plan, from which text, help, completion and docs are derived."""

from __future__ import annotations

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
class About:
    """The metadata in a field's annotation."""

    meaning: str
    default: str | None = None  #: default in words, if it depends on other fields
    words: Mapping[str, Any] | None = None  #: values by word, if the type does not define them
    least: int = 1  #: smallest number
    chip: str = "{name} {word}"  #: form on a page
    slug: str = "{name}{word}"  #: form in a file name
    equivalent: bool = True
    #: False if values other than the default are not equivalent to single-process training


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a plan: its name, its values as words, and what it means."""

    name: str
    default: Any
    words: Mapping[str, Any]  #: values by word
    takes_numbers: bool  #: whether whole numbers are accepted, too
    takes_series: bool  #: whether increasing whole numbers divided by "-" are accepted, too
    about: About

    def admits(self, value: object) -> bool:
        """Return whether ``value`` is valid for this field."""
        if self.takes_numbers and type(value) is int and self.about.least <= value:
            return value <= LARGEST_NUMBER
        if self.takes_series and type(value) is tuple and value:
            numbers = all(type(each) is int for each in value)
            if not numbers or list(value) != sorted(set(value)):
                return False
            return all(self.about.least <= each <= LARGEST_NUMBER for each in value)
        return any(
            type(value) is type(each) and value == each
            for each in (self.default, *self.words.values())
        )

    def word(self, value: object) -> str:
        """Return ``value`` in the form used in a plan's text."""
        for word, each in self.words.items():
            if type(value) is type(each) and value == each:
                return word
        return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def values(self) -> tuple[str, ...]:
        """Return the accepted values as listed in docs and help."""
        least = self.about.least
        numbers = (f"{least}", f"{least + 1}", "...") if self.takes_numbers else ()
        series = (f"{least}-{least + 1}-...",) if self.takes_series else ()
        return (*self.words, *numbers, *series)


@dataclass(frozen=True, slots=True)
class PlanFields:
    """The fields of a plan: ``dp`` replicas, each a pipeline of ``pp`` times ``tp`` ranks."""

    dp: Annotated[int, About("data parallel: replicas, each with its share of every batch")] = 1
    sync: Annotated[
        Literal["overlapped", "blocking"],
        About(
            "when replicas average their gradients: during the backward pass, or after it",
            slug="{word}",
        ),
    ] = "overlapped"
    gradients: Annotated[
        Literal["fp32", "bf16", "powersgd"],
        About(
            "form in which replicas exchange their gradients: whole, rounded to bf16, or as "
            "products of two factors of rank 4",
            equivalent=False,
        ),
    ] = "fp32"
    zero: Annotated[
        Literal[0, 1, 2, 3],
        About("what replicas shard: optimizer state (1), gradients too (2), parameters too (3)"),
    ] = 0
    shard: Annotated[
        int | None,
        About(
            "replicas that share one copy of what zero shards; fewer than dp: replicated across",
            default="`dp`",
            least=2,
        ),
    ] = None
    offload: Annotated[
        Literal["none", "cpu"],
        About("where what zero shards is kept between its uses; the optimizer runs there"),
    ] = "none"
    tp: Annotated[
        int,
        About("tensor parallel: ranks that each hold a part of the linear layers the model splits"),
    ] = 1
    sp: Annotated[
        bool,
        About("sequence parallel: between those layers each tp rank holds a part of the tokens"),
    ] = False
    pp: Annotated[int, About("pipeline parallel: ranks of each replica's pipeline")] = 1
    schedule: Annotated[
        str | None,
        About(
            "order in which a pipeline works on its micro-batches",
            default=f"`{next(iter(SCHEDULES))}` where `pp` > 1",
            words={name: name for name in SCHEDULES},
            chip="{word}",
            slug="{word}",
        ),
    ] = None
    stages: Annotated[
        int,
        About(
            "stages of the pipeline on each rank",
            default="the schedule's",
            chip="{word} stages a rank",
        ),
    ] = 1
    cut: Annotated[
        Literal["minimax", "uniform", "parameters", "prefix_nearest", "ampa"],
        About(
            "how the model is partitioned into stages",
            chip="cut by {word}",
            slug="{name}-{word}",
        ),
    ] = "minimax"
    cuts: Annotated[
        tuple[int, ...],
        About(
            "where stages are cut by hand: the units before each stage but the first",
            default="as `cut` says",
            slug="{name}-{word}",
        ),
    ] = ()
    microbatches: Annotated[
        int,
        About(
            "parts of a replica's share of the batch; without a pipeline: gradient accumulation",
            default="`pp`",
            chip="{word} micro-batches",
            slug="m{word}",
        ),
    ] = 1
    staleness: Annotated[
        int,
        About(
            "steps by which the weights that gradients are computed with are older than those they "
            "are applied to",
            least=0,
            equivalent=False,
        ),
    ] = 0
    flush: Annotated[
        bool,
        About("a pipeline ends all passes of a step before it begins those of the next"),
    ] = True
    links: Annotated[
        Literal["none", "bf16", "int8", "topk"],
        About(
            "compression of what pipeline stages send each other: none, rounded to bf16 or int8, "
            "or only the largest 10 % (top-k)",
            equivalent=False,
        ),
    ] = "none"
    recompute: Annotated[
        int,
        About(
            "units whose activations are computed again in the backward pass: "
            "none, all, or every so many",
            words={"none": 0, "full": 1},
            slug="r{word}",
        ),
    ] = 0
    precision: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16"],
        About(
            "of matrix products and convolutions; weights stay in fp32, fp16 scales the loss",
            chip="{word}",
            slug="{word}",
        ),
    ] = "fp32"
    compile: Annotated[bool, About("each unit is compiled by torch.compile")] = False
    bn: Annotated[BatchNormMode, About("scope of BatchNorm statistics")] = "micro"
    order: Annotated[
        AxisOrder,
        About(
            "order of the mesh axes, outermost first: ranks of the last one are neighbours",
            slug="{name}-{word}",
        ),
    ] = "pp-dp-tp"

    @property
    def ranks(self) -> int:
        """Return the number of processes the plan needs."""
        return self.dp * self.pp * self.tp

    @property
    def shards(self) -> int:
        """Return the number of replicas that share one copy of what ``zero`` shards; else 1."""
        return (self.shard or self.dp) if self.zero else 1

    @property
    def pipeline(self) -> Schedule | None:
        """Return the schedule's entry in the registry, or None without a pipeline."""
        return SCHEDULES.get(str(self.schedule))

    @property
    def pipeline_stages(self) -> int:
        """Return the number of stages of a replica's pipeline, over all its ranks."""
        return self.pp * self.stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the indices of the stages of a rank of the pipeline, in the model's order."""
        return self.pipeline.placement(rank, self.pp, self.stages) if self.pipeline else (0,)

    @property
    def delays_or_compresses(self) -> bool:
        """Return whether the plan trains as no runtime of torch does, by programs of our own."""
        return self.staleness > 0 or self.links != "none" or self.gradients == "powersgd"

    @property
    def equivalent(self) -> bool:
        """Return whether the plan computes the same as one process, up to the order of sums.

        That process has the same ``precision`` and ``bn``; the log states both.
        """
        return not self.deviations

    @property
    def deviations(self) -> tuple[str, ...]:
        """Return the fields, such as ``gradients=bf16``, that make it not `equivalent`."""
        return tuple(
            f"{name}={field.word(value)}"
            for name, field in FIELDS.items()
            if not field.about.equivalent and (value := getattr(self, name)) != field.default
        )


def _table() -> dict[str, Field]:
    hints = typing.get_type_hints(PlanFields, include_extras=True)
    table = {}
    for each in fields(PlanFields):
        kind, about = get_args(hints[each.name])
        words, numbers, series = about.words or {}, False, get_origin(kind) is tuple
        kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        if bool in kinds:
            words = {"off": False, "on": True}
        elif get_origin(kind) is Literal:
            words = {str(value): value for value in get_args(kind)}
        else:
            numbers = int in kinds
        table[each.name] = Field(each.name, each.default, words, numbers, series, about)
    return table


FIELDS: Final = _table()  #: by name, in the order of the canonical text
