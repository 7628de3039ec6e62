"""Register and apply rules, and describe the checks that are made while reading."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.findings import UNREADABLE, Finding, Severity
from hybridperf.log.package import PUT_BACK
from hybridperf.log.reader import A_LOG, PUT_IT_THERE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from hybridperf.log.log import Log

__all__ = [
    "FINDINGS_CAP",
    "READING",
    "RULES",
    "Deviation",
    "Reading",
    "Rule",
    "Scope",
    "apply_all",
    "bounded",
    "first_of",
    "misspelt",
    "of_scope",
    "rule",
    "unreadable_log",
]

#: the subject of a rule: "log": `Log`, "run": `SealedRun`, "result": `Result`, "submission":
#: `Submission`; of MLPerf's package checker, "package.result": `Submitted`, "package.submission":
#: `Submission`
Scope = Literal["log", "run", "result", "submission", "package.result", "package.submission"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One violation of a rule."""

    expected: str
    found: str
    line: int | None = None
    run: int | None = None  #: number of the attempt, for rules of results
    path: str = ""  #: defaults to the subject's path
    severity: Severity | None = None  #: defaults to the rule's severity
    remedy: str = ""  #: defaults to the rule's remedy


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

    ``scope`` determines the type of ``subject``. ``benchmark`` is a `Task` in this suite's ruleset
    and a `Benchmark` in those of MLPerf; rules of submissions do not take it. A rule that both have
    is registered twice: each ruleset names its own source and remedy.
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
            deviation.remedy or rule.remedy,
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


_LOGGING: Final = "MLPerf logging specification: one line, :::MLLOG and a JSON object, an event"
_CHECKER: Final = "MLPerf's compliance checker of the round"
_AGAIN: Final = "run again"
_LOGGER: Final = "use an MLPerf logger, and let one process write each line"


@dataclass(frozen=True, slots=True)
class Reading:
    """The description of a check: its criterion, source and remedy."""

    checks: str
    source: str
    remedy: str
    ours: bool = False  #: applies to this suite's results
    rounds: bool = False  #: applies to MLPerf rounds
    severity: Severity = Severity.ERROR


READING: Final = {  # by rule id
    "log.file": Reading(
        "The log is a text file that can be read, of at most 64 MiB, with lines of a log in it.",
        "HybridPerf rules, section 2: what a log is",
        PUT_IT_THERE,
        ours=True,
        rounds=True,
    ),
    UNREADABLE: Reading(
        "This machine can read every file and folder; else a result is not judged.",
        "HybridPerf rules, section 3: what is judged",
        "get permission to read it",
        ours=True,
        rounds=True,
    ),
    "log.line": Reading(
        "Every MLLOG line is UTF-8 text with one JSON object of the right fields and types.",
        _LOGGING,
        _AGAIN,
        ours=True,
    ),
    "run.benchmark": Reading(
        "The log names a task of this suite.",
        "HybridPerf rules, section 1: results compare only within one version of a task",
        "see 'hybridperf list'; logs of a round of MLPerf are checked with --ruleset",
        ours=True,
    ),
    "result.task": Reading(
        "The file beside the logs of a user's own task is a task that can be read.",
        "HybridPerf rules, section 1: a user's own task",
        PUT_BACK,
        ours=True,
    ),
    "result.name": Reading(
        "Folders are named in letters, digits, '.', '_' and '-', a letter or digit first.",
        "HybridPerf rules, section 3: how folders are named",
        "rename the folder",
        ours=True,
    ),
    "result.manifest": Reading(
        "A run's manifest is JSON that can be read, in the format that this suite writes.",
        "HybridPerf rules, section 3: the manifest of a run",
        PUT_BACK,
        ours=True,
    ),
    "system.file": Reading(
        "The description of the system is JSON that can be read.",
        "MLPerf submission rules: every system is described",
        f"{PUT_BACK}, or correct what was written by hand",
        ours=True,
        rounds=True,
    ),
    "result.copies": Reading(
        "No run of a result stands in another result that is checked with it.",
        "HybridPerf rules, section 8: runs are independent",
        "remove what was copied; every result is made of runs of its own",
        ours=True,
    ),
    "result.disputed": Reading(
        "No run of a result stands in another result of equal right.",
        "HybridPerf rules, section 8: runs are independent",
        "sign the original with 'hybridperf sign', or remove the copy",
        ours=True,
    ),
    "mlperf.line": Reading(
        "Every MLLOG line has a JSON object with a key and a time.",
        _LOGGING,
        _LOGGER,
        rounds=True,
    ),
    "mlperf.fields": Reading(
        "No JSON object of a line has a key twice; the checker took the last.",
        _LOGGING,
        _LOGGER,
        rounds=True,
        severity=Severity.WARNING,
    ),
    "mlperf.keys": Reading(
        "Every required key occurs as often as the ruleset says; a repeated one with the same "
        "value is a warning.",
        f"{_CHECKER}: REQ of each key",
        "log every required key as often as the ruleset says",
        rounds=True,
    ),
    "mlperf.values": Reading(
        "Every value keeps the constraints that the ruleset has for its key.",
        f"{_CHECKER}: CHECK of each key",
        "run with a value that the ruleset allows, and log it",
        rounds=True,
    ),
    "mlperf.metadata": Reading(
        "A key's metadata has the names, and the values, that the ruleset asks for.",
        f"{_CHECKER}: CHECK of each key",
        "log the key with this metadata",
        rounds=True,
    ),
    "mlperf.target": Reading(
        "One evaluation at least reached the target.",
        f"{_CHECKER}: ATLEAST_ONE_CHECK of eval_accuracy",
        "train to the target; a run that misses it scores as the slowest",
        rounds=True,
    ),
    "mlperf.tensors": Reading(
        "The initialisation of every tensor of the reference model is logged.",
        f"{_CHECKER}: weights_initialization",
        "log how every tensor of the model was initialised",
        rounds=True,
    ),
    "mlperf.order": Reading(
        "Initialisation, start and stop follow each other in the file.",
        f"{_CHECKER}: the order of init_start, init_stop, run_start and run_stop",
        "initialise, then start the clock, and stop it last",
        rounds=True,
    ),
    "mlperf.initialisation": Reading(
        "Initialisation took no longer than the division allows.",
        "MLPerf Training rules, section 11: time of model initialisation",
        "initialise faster, or start the clock earlier",
        rounds=True,
    ),
}


def unreadable_log(log: Log) -> list[Finding]:
    """Return the findings of an unreadable or empty log; an empty list for other logs."""
    if not log.entries and not log.findings:
        return [Finding("log.file", A_LOG, "no such line", PUT_IT_THERE, log.path)]
    barred = any(each.rule in {"log.file", UNREADABLE} for each in log.findings)
    return log.findings if barred else []
