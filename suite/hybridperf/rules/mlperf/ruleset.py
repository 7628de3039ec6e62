"""Rulesets, of this suite and of MLPerf's rounds: which demands and rules hold for which logs."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.rules.mlperf.cadence import Cadence  # noqa: TC001 - `build` reads it at run time
from hybridperf.rules.mlperf.constraints import in_words, keeps
from hybridperf.rules.mlperf.demand import Demand, parse_demand
from hybridperf.rules.mlperf.evaluations import Join, joined_evaluations
from hybridperf.rules.mlperf.merge import FOLDER, known_rulesets, merged_table
from hybridperf.rules.verdict import RULESET
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.schema import build
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridperf.log.log import Entry, Log

__all__ = [
    "Benchmark",
    "Group",
    "Ruleset",
    "division",
    "known_benchmarks",
    "known_rulesets",
    "load_ruleset",
    "parse_ruleset",
]

_DIVISIONS = ("closed", "open")


@dataclass(frozen=True, slots=True)
class Group:
    """The demands on logs whose first lines with the keys of ``when`` have these values."""

    when: Mapping[str, object]  #: a list: any of its values
    demands: Mapping[str, Demand]
    join: Join | None = None

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
    join: Join | None = field(default=None, compare=False)

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
    groups: tuple[Group, ...]  #: of two that apply, the later replaces demands of the earlier
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

    def join_of(self, log: Log) -> Join | None:
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
        return _of_name(source)
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
def _of_name(name: str) -> Ruleset:
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
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
    table = merged_table(text)
    named = _benchmarks(table["benchmarks"])
    names = {name for listed in named.values() for name in listed}
    groups = [_group(each) for each in table["group"] if _is_for(each["when"], names)]
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


def _choice(division: str, benchmarks: list[str]) -> Group:
    """Return the demand that a log of ``division`` names one of ``benchmarks``."""
    key = keys.SUBMISSION_BENCHMARK
    asked = Demand(key, 1, 1, value={"one_of": benchmarks})
    return Group({keys.SUBMISSION_DIVISION: division}, {key: asked})


def _group(table: dict[str, Any]) -> Group:
    demands: dict[str, Demand] = {}
    for key, asked in table["keys"].items():
        try:
            demands[key] = parse_demand(key, asked)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{key}: {error}") from error
    join = table.get("join")
    return Group(table["when"], demands, Join(**join) if join else None)


def _effective(groups: list[Group]) -> tuple[Demand, ...]:
    """Return the demands of ``groups`` on each key: the last, and what lasts of earlier ones."""
    last: dict[str, Demand] = {}
    lasting: list[Demand] = []
    for group in groups:
        for key, demand in group.demands.items():
            if key in last and (rest := last[key].lasting):
                lasting.append(rest)
            last[key] = demand
    return (*lasting, *last.values())


def _with_target(benchmark: Benchmark, groups: list[Group]) -> Benchmark:
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
