"""Rulesets, of this suite and of MLPerf's rounds: which demands and rules hold for which logs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, Severity
from hybridperf.log import keys
from hybridperf.log.log import Entry
from hybridperf.rules.mlperf.constraints import (
    Constraints,
    computed,
    in_words,
    keeps,
    names_in,
    parse_constraints,
)
from hybridperf.rules.verdict import RULESET
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.schema import build
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hybridperf.log.log import Log

__all__ = [
    "Benchmark",
    "Cadence",
    "Demand",
    "DemandGroup",
    "Due",
    "MetricJoin",
    "Ruleset",
    "Within",
    "division",
    "joined_evaluations",
    "known_benchmarks",
    "known_rulesets",
    "load_ruleset",
    "parse_ruleset",
]

_OCCURS: Final[Mapping[str, tuple[int, int | None]]] = {
    "exactly_one": (1, 1),
    "at_least_one": (1, None),
    "at_most_one": (0, 1),
}
_LISTS: Final = ("or", "metadata_any", "after", "before")
_LIMITS: Final = ("value", "reached")
_BY_NAME: Final = ("metadata", "first_metadata", "metadata_if")
_DIVISIONS = ("closed", "open")
_FOLDER: Final = Path(__file__).parents[1] / "rulesets"
_TABLES: Final = {
    "name", "source", "extends", "untested", "benchmarks", "group", "benchmark", "strict",
}  # fmt: skip
_Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Within:
    """The longest time since the earliest line with another key, by division, in minutes."""

    of: str
    minutes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on one key; an empty one allows everything."""

    key: str
    least: int = 0  #: number of lines
    most: int | None = None  #: number of lines; one may be repeated with the same value
    instead: tuple[str, ...] = ()  #: other keys, any of which will do
    value: Constraints = field(default_factory=dict)  #: for every value
    reached: Constraints = field(default_factory=dict)  #: for at least one value
    metadata: Mapping[str, Constraints] = field(default_factory=dict)  #: of every line, by name
    first_metadata: Mapping[str, Constraints] = field(default_factory=dict)  #: of the first line
    metadata_any: tuple[str, ...] = ()  #: names, one of which every line has
    metadata_if: Mapping[str, Constraints] = field(default_factory=dict)  #: where the name occurs
    metadata_with: Mapping[str, str] = field(default_factory=dict)  #: name -> name it comes with
    covers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: metadata name -> its values on all lines, each once
    severity: Severity = Severity.ERROR  #: of its violations
    after: tuple[str, ...] = ()  #: keys that occur before every line with this one
    before: tuple[str, ...] = ()  #: keys that do not
    within: Within | None = None
    names: tuple[str, ...] = ()  #: other keys whose values its formulas use

    @property
    def is_simple(self) -> bool:
        """Tell whether the metadata must have names, with any values, and nothing else."""
        others = self.first_metadata or self.metadata_any or self.metadata_if
        return not others and not any(self.metadata.values())

    @property
    def lasting(self) -> Demand | None:
        """Return the part that holds even if a later group demands something else of the key."""
        if not (self.reached or self.covers or self.instead):
            return None
        needed = self if self.instead else replace(self, least=0)
        return Demand(
            self.key,
            needed.least,
            instead=self.instead,
            reached=self.reached,
            covers=self.covers,
            severity=self.severity,
            names=self.names,
        )


def _parse_demand(key: str, asked: object) -> Demand:
    """Parse the demand on ``key`` in a ruleset.

    Raises:
        ValueError: if it is none; the message names what is wrong.
    """
    if not isinstance(asked, dict):
        raise ValueError(f"{asked!r:.80}, which is not a table")  # noqa: TRY004 - a file's content, not an argument
    fields: dict[str, Any] = {}
    for name, given in asked.items():
        fields |= _field(name, given)
    tables = [fields.get("value", {}), fields.get("reached", {})]
    for name in _BY_NAME:
        tables += fields.get(name, {}).values()
    return Demand(key, **fields, names=tuple(sorted(_formula_names(tables))))


def _field(name: str, given: Any) -> dict[str, Any]:
    if name == "occurs":
        if isinstance(given, int) and given > 0:
            return {"least": given}
        if given not in _OCCURS:
            known = ", ".join(_OCCURS)
            raise ValueError(f"occurs = {given!r:.40}, which is neither a number nor of {known}")
        least, most = _OCCURS[given]
        return {"least": least, "most": most}
    if name in _LISTS:
        return {"instead" if name == "or" else name: tuple(_texts(name, given))}
    if name in _LIMITS:
        return {name: parse_constraints(given)}
    if name in _BY_NAME:
        return {name: {each: parse_constraints(table) for each, table in given.items()}}
    match name, given:
        case "metadata_with", dict():
            return {"metadata_with": given}
        case "covers", dict():
            return {"covers": {each: tuple(_expanded(texts)) for each, texts in given.items()}}
        case "severity", "error" | "warning":
            return {"severity": Severity(given)}
        case "within", {"of": str() as of, "minutes": dict() as minutes}:
            return {"within": Within(of, minutes)}
    raise ValueError(f"{name} = {given!r:.40}, which is no demand")


def _texts(name: str, given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{name} = {given!r:.40}, which is not a list of keys")
    return texts


def _formula_names(tables: Iterable[Constraints]) -> set[str]:
    formulas = [table["holds"] for table in tables if "holds" in table]
    return {name for text in formulas for name in names_in(text)} - {"value", "position"}


def _expanded(patterns: list[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from _spelled_out(pattern)


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


@dataclass(frozen=True, slots=True)
class Due:
    """When evaluations are due at one batch size, as their lines count."""

    every: float
    first: float
    near: float  #: a distance that is a warning only
    near_first: float  #: a place of the first evaluation that is a warning only
    rounding: float  #: by which an evaluation may differ: a batch


@dataclass(frozen=True, slots=True)
class Cadence:
    """The distance of evaluations: formulas of ``batch``, the global batch size."""

    every: str
    unit: str  #: of what is counted, in words
    by: str = "epoch_num"  #: metadata of an evaluation that counts
    first: str = ""  #: place of the first evaluation; as far as others are apart, if not said
    first_earlier: bool = False  #: the first one may be anywhere before
    near: str = ""  #: a larger distance that is a warning only, such as before it is rounded down
    near_first: str = ""  #: the same of the first evaluation
    rounding: str = "0"
    total: Literal["", "train_samples"] = ""  #: key that logs count with, where lines stand still

    def __post_init__(self) -> None:
        """Refuse formulas of anything but ``batch``.

        Raises:
            ValueError: naming the formula.
        """
        for text in filter(None, self._formulas):
            if names_in(text) - {"batch"}:
                raise ValueError(f"{text!r}, which is no formula of batch")

    def due(self, batch: int) -> Due | None:
        """Return when evaluations are due at the global batch size ``batch``; None if never."""
        every, first, near, near_first, rounding = (
            computed(text, {"batch": batch}) if text else None for text in self._formulas
        )
        if every is None or every <= 0:
            return None
        near = every if near is None else near
        near_first = near_first or first or near
        return Due(every, first or every, near, near_first, rounding or 0.0)

    @property
    def _formulas(self) -> tuple[str, ...]:
        return self.every, self.first, self.near, self.near_first, self.rounding


@dataclass(frozen=True, slots=True)
class MetricJoin:
    """Evaluations of several metrics that are logged apart, and judged as one."""

    key: str  #: of the lines
    name: str  #: metadata that names the metric
    by: str  #: metadata that is equal in lines of one evaluation
    into: str  #: key of the joined lines, whose value has ``by`` and each metric


def joined_evaluations(log: Log, join: MetricJoin) -> tuple[list[Entry], list[Entry]]:
    """Return one entry for each evaluation, and the lines that belong to none."""
    at: dict[Any, Entry] = {}
    left_out: list[Entry] = []
    for entry in log.all(join.key):
        if join.name not in entry.metadata:
            continue
        point, metric = entry.metadata.get(join.by), entry.metadata[join.name]
        placed = join.by in entry.metadata and not isinstance(point, dict | list)
        if not placed or not isinstance(metric, str):
            left_out.append(entry)
            continue
        values: dict[str, object] = {join.by: point}
        metadata = {join.by: point}
        one = at.setdefault(
            point, Entry(join.into, entry.time_ms, "", values, metadata, entry.line)
        )
        one.time_ms = max(one.time_ms, entry.time_ms)
        one.value[metric] = entry.value  # type: ignore[index]  # the dictionary above
    return list(at.values()), left_out


@dataclass(frozen=True, slots=True)
class DemandGroup:
    """The demands on logs whose first lines with the keys of ``when`` have these values."""

    when: Mapping[str, object]  #: a list: any of its values
    demands: Mapping[str, Demand]
    join: MetricJoin | None = None

    def applies(self, by_key: Mapping[str, list[Entry]]) -> bool:
        """Tell whether the group is for a log with these entries."""
        for key, wanted in self.when.items():
            if not (here := by_key.get(key)):
                return False
            value = here[0].value
            if value not in wanted if isinstance(wanted, list) else value != wanted:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The parameters of a benchmark in a round, for mode ``strict``."""

    name: str
    edition: str = ""  #: the round, such as ``2.1``
    eval_samples: int | None = None  #: minimum per evaluation in the closed division
    cadence: Cadence | None = None
    train_samples: int | None = None  #: None if logs do not state it
    target: Demand | None = field(default=None, compare=False)  #: on evaluations, closed division
    join: MetricJoin | None = field(default=None, compare=False)

    @property
    def runs(self) -> int | None:
        """Return the number of runs required for a result; None if it is not known."""
        return mlperf_benchmark(self.name).runs

    @property
    def most_missed(self) -> int:
        """Return how many runs may miss the target: as many as the score drops at one end."""
        return mlperf_benchmark(self.name).drops

    @property
    def counts_samples(self) -> bool:
        """Tell whether ``epoch_num`` counts samples."""
        return mlperf_benchmark(self.name).epoch_num == "samples"

    @property
    def target_in_words(self) -> str:
        """Return the target, such as ``at least 0.72 and below 1.0``."""
        return in_words(self.target.reached) if self.target else "any"

    def evaluations(self, log: Log) -> list[Entry]:
        """Return the evaluations of ``log``; the metrics of one evaluation are joined."""
        if self.join:
            return joined_evaluations(log, self.join)[0]
        return log.all(self.target.key if self.target else keys.EVAL_ACCURACY)

    def reached_by(self, value: object, log: Log) -> bool:
        """Tell whether the ``value`` of an evaluation in ``log`` reaches the closed target."""
        if self.target is None:
            return True
        values = {name: log.value(name) for name in self.target.names}
        return keeps(self.target.reached, value, values)


@dataclass(frozen=True)
class Ruleset:
    """A pinned ruleset: that of this suite has rules only, that of a round also demands on keys."""

    name: str
    source: str
    groups: tuple[DemandGroup, ...]  #: of two that apply, the later replaces demands of the earlier
    benchmarks: Mapping[str, Benchmark]  #: that it judges, by name
    rules: Mapping[str, dict[str, Any]]  #: rule id -> parameters, in mode ``strict``
    untested: bool = False  #: no log of the round was at hand
    _demands: dict[tuple[int, ...], tuple[Demand, ...]] = field(default_factory=dict, compare=False)

    def demands_on(self, log: Log) -> tuple[Demand, ...]:
        """Return the demands on ``log``: of each key those of the last group that has any."""
        by_key = log.by_key
        which = tuple(n for n, group in enumerate(self.groups) if group.applies(by_key))
        if which not in self._demands:
            self._demands[which] = _effective([self.groups[number] for number in which])
        return self._demands[which]

    def join_of(self, log: Log) -> MetricJoin | None:
        """Return how the evaluations of ``log`` are joined, if they are."""
        joins = [group.join for group in self.groups if group.join and group.applies(log.by_key)]
        return joins[-1] if joins else None

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """Return all keys that the ruleset names."""
        return frozenset(key for group in self.groups for key in group.demands)


def load_ruleset(source: str | Path) -> Ruleset:
    """Load a ruleset: by the name of one of `known_rulesets`, or from a file in MLPerf's form.

    Raises:
        UserError: exit status 2 if the file cannot be read, or holds no ruleset.
    """
    if isinstance(source, str):
        return _load_named(source)
    try:
        return parse_ruleset(read_bounded(source, DOCUMENT_CAP_BYTES).decode())
    except UserError as refusal:
        found = refusal.finding.found if refusal.finding else str(refusal)
    except (OSError, ValueError) as error:  # TOML and formulas raise ValueError
        found = reason(error)
    remedy = "correct it as docs/rounds.md says, or name a ruleset of 'hybridperf check --help'"
    finding = Finding("check.ruleset", "a ruleset", found, remedy, path=str(source))
    raise UserError(finding, ExitCode.USAGE)


@functools.cache
def _load_named(name: str) -> Ruleset:
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    if name == RULESET:
        return Ruleset(name, "HybridPerf rules", (), {}, tomllib.loads(text)["rules"])
    return parse_ruleset(text)


@functools.cache
def known_benchmarks() -> frozenset[str]:
    """Return the benchmarks of all rulesets of MLPerf."""
    return frozenset(each for name in known_rulesets() for each in load_ruleset(name).benchmarks)


@functools.cache
def parse_ruleset(text: str) -> Ruleset:
    """Build the ruleset that the TOML ``text`` states, with what it extends.

    Raises:
        ValueError: if it is not a ruleset; the message names what is wrong.
    """
    table = _merged_table(text)
    named = _benchmarks(table["benchmarks"])
    names = {name for listed in named.values() for name in listed}
    groups = [_demand_group(each) for each in table["group"] if _is_for(each["when"], names)]
    groups += [_choice(division, listed) for division, listed in named.items()]
    groups.sort(key=lambda group: len(group.when))  # more specific ones replace others' demands
    benchmarks = {
        name: build(
            Benchmark,
            {"name": name, "edition": _edition(table["name"]), **table["benchmark"].get(name, {})},
            path=str(table["name"]),
            at=f"benchmark.{name}",
        )
        for name in sorted(names)
    }
    return Ruleset(
        str(table["name"]),
        str(table["source"]),
        tuple(groups),
        {name: _with_target(each, groups) for name, each in benchmarks.items()},
        table["strict"]["rules"],
        bool(table["untested"]),
    )


def _edition(name: object) -> str:
    """Return the round that the ruleset ``name`` is of; "" if it is of none."""
    match = re.fullmatch(r"mlperf-training-([0-9]{1,3}\.[0-9]{1,3})\.[0-9]{1,3}", str(name))
    return match[1] if match else ""


def _benchmarks(table: object) -> dict[str, list[str]]:
    if not isinstance(table, dict) or set(table) != set(_DIVISIONS):
        raise ValueError("expected a table 'benchmarks' with lists 'closed' and 'open'")
    for listed in table.values():
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise ValueError(f"benchmarks = {listed!r:.80}, which is not a list of names")
    return table


def _is_for(when: Mapping[str, object], names: set[str]) -> bool:
    """Tell whether a group is for all benchmarks, or for one of ``names``."""
    wanted = when.get(keys.SUBMISSION_BENCHMARK)
    if wanted is None:
        return True
    return bool(names.intersection(wanted if isinstance(wanted, list) else [wanted]))


def _choice(division: str, benchmarks: list[str]) -> DemandGroup:
    """Return the demand that a log of ``division`` names one of ``benchmarks``."""
    key = keys.SUBMISSION_BENCHMARK
    asked = Demand(key, 1, 1, value={"one_of": benchmarks})
    return DemandGroup({keys.SUBMISSION_DIVISION: division}, {key: asked})


def _demand_group(table: dict[str, Any]) -> DemandGroup:
    demands: dict[str, Demand] = {}
    for key, asked in table["keys"].items():
        try:
            demands[key] = _parse_demand(key, asked)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{key}: {error}") from error
    join = table.get("join")
    return DemandGroup(table["when"], demands, MetricJoin(**join) if join else None)


def _effective(groups: list[DemandGroup]) -> tuple[Demand, ...]:
    """Return the demands of ``groups`` on each key: the last, and what lasts of earlier ones."""
    last: dict[str, Demand] = {}
    lasting: list[Demand] = []
    for group in groups:
        for key, demand in group.demands.items():
            if key in last and (rest := last[key].lasting):
                lasting.append(rest)
            last[key] = demand
    return (*lasting, *last.values())


def _with_target(benchmark: Benchmark, groups: list[DemandGroup]) -> Benchmark:
    """Return ``benchmark`` with the target that its logs of the closed division must reach."""
    for group in reversed(groups):
        if group.when.get(keys.SUBMISSION_DIVISION) != "closed" or not _is_for(
            group.when, {benchmark.name}
        ):
            continue
        for demand in group.demands.values():
            if demand.reached:
                return dataclasses.replace(benchmark, target=demand, join=group.join)
    return benchmark


def division(log: Log) -> Literal["closed", "open"]:
    """Return the division stated in the log; closed if it is not stated."""
    value = log.value(keys.SUBMISSION_DIVISION)
    return "open" if value == "open" else "closed"


def known_rulesets() -> list[str]:
    """Return the names of all rulesets, including this suite's."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def _merged_table(text: str) -> _Table:
    """Parse the ruleset ``text`` and merge it into the ruleset that it extends, if any.

    Raises:
        ValueError: if it is not TOML, extends no known ruleset, or has an unknown table.
    """
    table = tomllib.loads(text)
    if unknown := sorted(set(table) - _TABLES):
        raise ValueError(f"{unknown[0]!r:.40}, which is not part of a ruleset")
    if "extends" not in table:
        return _merge({}, table)
    return _merge(copy.deepcopy(_extended(str(table["extends"]))), table)


@functools.cache
def _extended(name: str) -> _Table:
    if name not in [*known_rulesets(), "base/mlperf-training"]:
        raise ValueError(f"extends = {name!r:.80}, which is no known ruleset")
    return _merged_table((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _merge(base: _Table, table: _Table) -> _Table:
    groups = base.get("group", [])
    for group in table.get("group", []):
        _add(groups, group)
    strict = base.get("strict", {}).get("rules", {}) | table.get("strict", {}).get("rules", {})
    for removed in table.get("strict", {}).get("remove", []):
        del strict[removed]
    return {
        **{name: table.get(name, base.get(name)) for name in ("name", "source", "benchmarks")},
        "untested": table.get("untested", False),
        "group": groups,
        "benchmark": base.get("benchmark", {}) | table.get("benchmark", {}),
        "strict": {"rules": strict},
    }


def _add(groups: list[_Table], group: _Table) -> None:
    """Merge ``group`` into the one of ``groups`` with the same ``when``, or append it."""
    if unknown := set(group) - {"when", "keys", "once", "remove", "same_as", "join"}:
        raise ValueError(f"{min(unknown)!r:.40}, which is not part of a group")
    when = group.get("when")
    if not isinstance(when, dict):
        raise ValueError("a group without 'when'")  # noqa: TRY004 - a file's content, not an argument
    found = next((each for each in groups if each["when"] == when), None)
    if found is None:
        found = {"when": when, "keys": {}}
        groups.append(found)
    if "same_as" in group:
        like = next((each for each in groups if each["when"] == group["same_as"]), None)
        if like is None:
            raise ValueError(f"same_as = {group['same_as']!r:.200}, which no group is for")
        found["keys"] = copy.deepcopy(like["keys"])
    for key in group.get("remove", []):
        if key not in found["keys"]:
            raise ValueError(f"remove = {key!r:.40}, which the group does not demand")
        del found["keys"][key]
    found["keys"] |= {key: {"occurs": "exactly_one"} for key in group.get("once", [])}
    for key, asked in group.get("keys", {}).items():
        if isinstance(asked, dict) and asked.pop("extends", False):
            found["keys"][key] = found["keys"].get(key, {}) | asked
        else:
            found["keys"][key] = asked
    if "join" in group:
        found["join"] = group["join"]
