"""Register and apply rules."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "FINDINGS_CAP",
    "RULES",
    "Deviation",
    "Rule",
    "Scope",
    "apply_all",
    "bounded",
    "first_of",
    "misspelt",
    "of_scope",
    "rule",
]

#: the subject of a rule: "run": `SealedRun`, "result": `Result`, "mlperf.log": `Log`,
#: "mlperf.result": `Result`, "submission": `Submission`; of MLPerf's package checker,
#: "package.result": `Submitted`, "package.submission": `Submission`
Scope = Literal[
    "run",
    "result",
    "mlperf.log",
    "mlperf.result",
    "submission",
    "package.result",
    "package.submission",
]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One violation of a rule."""

    expected: str
    found: str
    line: int | None = None
    run: int | None = None  #: number of the attempt, for rules of results
    path: str = ""  #: defaults to the subject's path
    severity: Severity | None = None  #: defaults to the rule's severity


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, scope, source, remedy and function."""

    id: str
    scope: Scope
    source: str  #: paragraph of the MLPerf or HybridPerf rules
    remedy: str
    check: Callable[..., Iterable[Deviation]]
    severity: Severity = Severity.ERROR


RULES: Final[dict[str, Rule]] = {}  #: by id


def rule(
    rule_id: str,
    *,
    scope: Scope,
    source: str,
    remedy: str,
    severity: Severity = Severity.ERROR,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function ``check(subject, benchmark, **parameters)`` as a rule.

    ``scope`` determines the type of ``subject``. ``benchmark`` is a `Task` for this suite's runs
    and results and a `Benchmark` for MLPerf's; rules of submissions do not take it.
    """

    def register(check: Callable[..., Any]) -> Callable[..., Any]:
        assert rule_id not in RULES, rule_id
        RULES[rule_id] = Rule(rule_id, scope, source, remedy, check, severity)
        return check

    return register


_MOST_SHOWN: Final = 100  # findings reported per rule and subject; further ones are counted


def of_scope(
    table: Mapping[str, dict[str, Any]], scope: Scope
) -> list[tuple[Rule, dict[str, Any]]]:
    """Return the rules of ``scope`` in a ruleset's ``table``, with their parameters."""
    return [
        (RULES[name], parameters)
        for name, parameters in table.items()
        if RULES[name].scope == scope
    ]


def apply_all(
    rules: Iterable[tuple[Rule, dict[str, Any]]],
    subject: object,
    *benchmark: object,
    path: str,
    runs: Mapping[int, str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of ``rules`` in ``subject``, displayed as ``path``.

    ``runs`` maps the numbers of a result's attempts to their paths.
    """
    for rule, parameters in rules:
        yield from _apply(rule, subject, *benchmark, parameters=parameters, path=path, runs=runs)


def _apply(
    rule: Rule,
    subject: object,
    *benchmark: object,
    parameters: Mapping[str, Any],
    path: str,
    runs: Mapping[int, str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of one ``rule``; the arguments are those of `apply_all`."""
    deviations: Iterable[Deviation] = rule.check(subject, *benchmark, **parameters)
    shown = iter(deviations)
    for deviation in itertools.islice(shown, _MOST_SHOWN):
        place = deviation.path or (path if deviation.run is None else (runs or {})[deviation.run])
        yield Finding(
            rule.id,
            deviation.expected,
            deviation.found,
            rule.remedy,
            place,
            deviation.line,
            deviation.severity or rule.severity,
        )
    if more := sum(1 for _ in shown):
        yield Finding(
            rule.id,
            f"at most {_MOST_SHOWN} findings of this rule",
            f"{more} more that are not shown",
            rule.remedy,
            path,
            severity=rule.severity,
        )


FINDINGS_CAP: Final = 10_000  # rounds v2.0 and v2.1 have 1,900 in mode strict


def bounded(findings: Iterable[Finding], place: str) -> Iterator[Finding]:
    """Yield the first `FINDINGS_CAP` of ``findings``, then the number of further ones per rule.

    The first error of every file is always included, so that no invalid file appears valid.
    ``place`` is the displayed path of the checked file or folder.
    """
    wrong = set[str]()
    kept = 0
    more = Counter[tuple[str, Severity]]()
    remedies: dict[str, str] = {}
    for finding in findings:
        first_error = finding.severity is Severity.ERROR and finding.path not in wrong
        if kept < FINDINGS_CAP or first_error:
            kept += 1
            if first_error:
                wrong.add(finding.path)
            yield finding
        else:
            more[finding.rule, finding.severity] += 1
            remedies.setdefault(finding.rule, finding.remedy)
    for (rule, severity), count in more.items():
        expected = f"at most {FINDINGS_CAP} findings in all"
        found = f"at least {count} more of this rule that are not shown"
        yield Finding(rule, expected, found, remedies[rule], place, severity=severity)


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first ``most`` of ``names``, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


_MOST_COMPARED: Final = 200
_LONGEST: Final = 64
_ALIKE: Final = 0.75


def misspelt(key: str, present: Iterable[str], known: Collection[str]) -> str:
    """Return ``, but 'sead'`` for an unknown key in ``present`` similar to ``key``, else ""."""
    others = (each for each in present if each not in known and len(each) <= _LONGEST)
    near = get_close_matches(
        key, list(itertools.islice(others, _MOST_COMPARED)), n=1, cutoff=_ALIKE
    )
    return f", but {near[0]!r}" if near else ""
