"""Claims as data: a file of claims, the value that a claim states, and its check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = [
    "Check",
    "Claim",
    "CompareCheck",
    "CountCheck",
    "ExpressionCheck",
    "NoCheck",
    "PlaceCheck",
    "ProjectCheck",
    "ScaleCheck",
    "ScoreCheck",
]


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """A column of `hybridperf score`, of one result."""

    result: str  #: path of the result below ``--root``
    metric: str


@dataclass(frozen=True, slots=True)
class CompareCheck:
    """A result compared with one or more bases, by the test of `hybridperf compare`."""

    result: str
    bases: tuple[str, ...]
    metric: Literal["time", "saving", "end_to_end_throughput", "steady_throughput", "samples"]
    best: bool = False  #: a superlative: no base may be better


@dataclass(frozen=True, slots=True)
class ScaleCheck:
    """A scaling efficiency of a result from a smaller one."""

    result: str
    base: str
    metrics: tuple[str, ...]  #: the definitions that the source leaves open


@dataclass(frozen=True, slots=True)
class PlaceCheck:
    """The place of a result among all results that match a filter."""

    result: str
    where: dict[str, object]  #: column of `hybridperf score` -> value


@dataclass(frozen=True, slots=True)
class CountCheck:
    """The number of organisations or results that match a filter."""

    what: Literal["organisations", "results"]
    where: dict[str, object] = field(default_factory=dict)
    names: tuple[str, ...] = ()  #: organisations, where the logs of a round are not at hand


@dataclass(frozen=True, slots=True)
class ProjectCheck:
    """The throughput of a plan over a base plan, on a grid of what the source leaves open.

    Each list is one axis of the grid: a claim holds where some of its points have the value.
    """

    tasks: tuple[str, ...]
    plans: tuple[str, ...]
    bases: tuple[str, ...]
    systems: tuple[str, ...]
    batches: tuple[int, ...]  #: samples on a device
    precisions: tuple[str, ...]
    metric: Literal["speedup", "gain", "memory_saving"] = "gain"
    #: ratio of throughputs, the ratio less 1, or the share by which the largest memory is smaller
    strongest: tuple[str, ...] = ()  #: bases to show besides, such as overlapped data parallelism
    base_systems: tuple[str, ...] = ()  #: systems of the bases; (): the system of the plan
    alternatives: tuple[str, ...] = ()  #: plans to show besides, such as a delay without a pipeline
    mean_of_tasks: bool = False  #: whether the claim is a mean over the tasks: a series of models
    note: str = ""  #: what the tasks, plans and systems stand for, where the source names others


@dataclass(frozen=True, slots=True)
class ExpressionCheck:
    """Arithmetic on constants with their sources, and on facts of the suite's tasks and devices."""

    formula: str
    constants: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  #: constant -> where it is published
    cases: dict[str, dict[str, float]] = field(default_factory=dict)
    #: further constants by the name of a case: what the source leaves open
    varies: str = "case"  #: what the names of the cases say
    implies: dict[str, str] = field(default_factory=dict)  #: further figures, by formula


@dataclass(frozen=True, slots=True)
class NoCheck:
    """What would have to be published before the claim can be checked."""

    missing: str


Check: TypeAlias = (
    ScoreCheck
    | CompareCheck
    | ScaleCheck
    | PlaceCheck
    | CountCheck
    | ProjectCheck
    | ExpressionCheck
    | NoCheck
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim."""

    id: str
    statement: str  #: verbatim
    source: str
    where: str  #: place in the source
    value: str  #: as stated, such as ``94 %``, ``up to 79.2 %`` or ``5-11 %``
    check: Check
