"""Load rulesets of MLPerf rounds, and evaluate their constraints."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.log import keys
from hybridperf.log.published import Absent
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hybridperf.log.log import Log

__all__ = [
    "Benchmark",
    "Cadence",
    "Demand",
    "Interval",
    "Ruleset",
    "division",
    "known_rulesets",
    "load_ruleset",
    "unmet",
]

_FOLDER: Final = Path(__file__).parents[1] / "rulesets"
_NEAR: Final = 1e-9  # tolerance for integral quotients of floating-point numbers

Constraints = dict[str, Any]  #: kind -> parameter; all must hold


@dataclass(frozen=True, slots=True)
class Demand:
    """The requirements for one key, in logs that have the values ``when``."""

    when: Mapping[str, object]
    key: str
    occurs: str  #: "exactly_one", "at_least_one" or "" (any number)
    instead: str  #: alternative key, or ""
    value: Constraints  #: for every value
    reached: Constraints  #: for at least one value
    metadata: Mapping[str, Constraints]  #: required metadata of every entry, by name
    covers: Mapping[str, frozenset[str]]  #: metadata name -> values that must all occur


@dataclass(frozen=True, slots=True)
class Interval:
    """The maximum time in minutes between the first entries of two keys."""

    when: Mapping[str, object]
    first: str
    last: str
    most_minutes: float


@dataclass(frozen=True, slots=True)
class Cadence:
    """The distance of evaluations: ``share * (per_batch * batch size + base)``, rounded down."""

    share: float
    per_batch: float
    base: float
    quantum: int  #: the distance is a multiple of it
    any_offset: bool  #: the first evaluation may be earlier

    def every(self, batch: int) -> int:
        """Return the distance at the global batch size ``batch``, in the benchmark's unit."""
        share, per_batch, base = (
            Fraction(str(each)) for each in (self.share, self.per_batch, self.base)
        )
        return int(share * (per_batch * batch + base) // self.quantum) * self.quantum


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The parameters of a benchmark in a round, for mode ``strict``."""

    name: str
    most_missed: int  #: maximum number of runs that miss the target
    quality: float  #: quality target
    eval_samples: int  #: minimum per evaluation in the closed division
    cadence: Cadence
    train_samples: int | None = None  #: None if logs do not state it

    @property
    def runs(self) -> int:
        """Return the number of runs required for a result."""
        runs = mlperf_benchmark(self.name).runs
        assert runs is not None, f"{self.name} has no runs in the catalogue"
        return runs

    @property
    def unit(self) -> Literal["samples", "epochs"]:
        """Return the unit of ``epoch_num`` and of the cadence."""
        return "samples" if mlperf_benchmark(self.name).epoch_num == "samples" else "epochs"


@dataclass(frozen=True, slots=True)
class Ruleset:
    """A pinned ruleset of an MLPerf round."""

    order: tuple[str, ...]  #: required order of the first entries of these keys
    intervals: tuple[Interval, ...]
    demands: tuple[Demand, ...]
    benchmarks: Mapping[str, Benchmark]  #: by name
    strict: Mapping[str, dict[str, Any]]  #: rule id -> parameters, in mode ``strict``


def known_rulesets() -> list[str]:
    """Return the names of all rulesets, including this suite's."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@functools.cache
def load_ruleset(name: str) -> Ruleset:
    """Load the ruleset ``name`` of an MLPerf round, one of `known_rulesets`."""
    path = _FOLDER / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "same_as" in table:
        return load_ruleset(table["same_as"])
    demands = (
        _demand(group["when"], key, asked)
        for group in table["group"]
        for key, asked in group["keys"].items()
    )
    intervals = tuple(Interval(**each) for each in table["interval"])
    benchmarks = {
        name: build(Benchmark, {"name": name, **facts}, path=path.name, at=f"benchmark.{name}")
        for name, facts in table["benchmark"].items()
    }
    return Ruleset(
        tuple(table["order"]), intervals, tuple(demands), benchmarks, table["strict"]["rules"]
    )


def unmet(constraints: Constraints, value: object) -> str | None:
    """Return the constraints in words if ``value`` violates one, else None."""
    if all(_KINDS[kind][0](value, parameter) for kind, parameter in constraints.items()):
        return None
    return " and ".join(
        _KINDS[kind][1].format(", ".join(map(str, parameter)) if kind == "one_of" else parameter)
        for kind, parameter in constraints.items()
    )


def _demand(when: Mapping[str, object], key: str, asked: dict[str, Any]) -> Demand:
    covers = {
        name: frozenset(word for pattern in patterns for word in _spelled_out(pattern))
        for name, patterns in asked.pop("covers", {}).items()
    }
    occurs, instead = asked.pop("occurs", ""), asked.pop("or", "")
    value, reached = asked.pop("value", {}), asked.pop("reached", {})
    demand = Demand(when, key, occurs, instead, value, reached, asked.pop("metadata", {}), covers)
    assert not asked, f"{key}: {', '.join(asked)}"
    assert occurs in {"", "exactly_one", "at_least_one"}, f"{key}: {occurs}"
    used = (kind for each in (value, reached, *demand.metadata.values()) for kind in each)
    assert set(used) <= set(_KINDS), key
    return demand


def _spelled_out(pattern: str) -> Iterator[str]:
    """Yield the expansions of ``{a,b}`` and ``{1..3}`` in ``pattern``."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        yield pattern
        return
    choice, _, tail = rest.partition("}")
    first, dots, last = choice.partition("..")
    words = map(str, range(int(first), int(last) + 1)) if dots else iter(choice.split(","))
    ends = list(_spelled_out(tail))
    yield from (f"{head}{word}{end}" for word in words for end in ends)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_plain_number(value: object) -> bool:
    return _is_number(value) and not isinstance(value, bool)


def _is_whole(value: object, least: int) -> bool:
    return _is_plain_number(value) and value >= least and value % 1 == 0  # type: ignore[operator]  # a number, as checked


def _is_multiple(value: object, unit: float) -> bool:
    return _near_whole(_quotient(value, unit))


def _is_doubled_or_halved(value: object, start: float) -> bool:
    quotient = _quotient(value, start)
    return 0 < quotient < math.inf and _near_whole(math.log2(quotient))


def _quotient(value: object, divisor: float) -> float:
    try:
        return value / divisor if isinstance(value, int | float) else math.nan
    except OverflowError:  # an integer too large for a float
        return math.nan


def _near_whole(number: float) -> bool:
    return math.isfinite(number) and abs(number - round(number)) <= _NEAR * max(1.0, abs(number))


_KINDS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "present": (lambda value, _: value is not Absent.ABSENT, "present"),
    "equals": (lambda value, other: bool(value == other), "equal to {}"),
    "one_of": (lambda value, others: value in others, "one of {}"),
    "number": (lambda value, _: _is_plain_number(value), "a number"),
    "whole": (_is_whole, "a whole number of at least {}"),
    "minimum": (lambda value, least: _is_number(value) and value >= least, "at least {}"),
    "above": (lambda value, bound: _is_number(value) and value > bound, "above {}"),
    "below": (lambda value, bound: _is_number(value) and value < bound, "below {}"),
    "multiple_of": (_is_multiple, "a multiple of {}"),
    "doubled_or_halved_from": (_is_doubled_or_halved, "{} doubled or halved any number of times"),
}


def division(log: Log) -> Literal["closed", "open"]:
    """Return the division stated in the log; closed if it is not stated."""
    value = log.value(keys.SUBMISSION_DIVISION)
    return "open" if value == "open" else "closed"
