"""Judge a round of MLPerf by all of its rules, also those that no official tool enforces.

Mode ``strict``: what mode ``as-published`` asks for, and every rule under ``strict`` in the
ruleset.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from suite.findings import Severity
from suite.logs import keys
from suite.logs.submission import submissions_of
from suite.rules import (
    layout_rules,
    package_rules,
    place_rules,
    plausibility_rules,
    system_rules,
)
from suite.rules.apply import apply_all, of_scope
from suite.rules.mlperf import (
    cadence_rules,
    clock_rules,
    evaluation_rules,
    form_rules,
    hyperparameter_rules,
    result_rules,
)
from suite.rules.mlperf.as_published import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.findings import Finding
    from suite.logs.log import Log
    from suite.logs.package import Package, Result
    from suite.rules.mlperf.ruleset import Benchmark, Ruleset

__all__ = ["check_log_strictly", "check_result_strictly", "check_submissions"]

_REGISTERED: Final = (  # importing them registers their rules
    clock_rules,
    form_rules,
    cadence_rules,
    evaluation_rules,
    hyperparameter_rules,
    result_rules,
    package_rules,
    layout_rules,
    system_rules,
    place_rules,
    plausibility_rules,
)


def check_log_strictly(log: Log, ruleset: Ruleset) -> Iterator[Finding]:
    """Yield what is wrong with one log on its own; never raises for what it contains."""
    for finding in judge(log, ruleset):
        # RFC 8259, section 4: what a key that stands twice means differs from reader to reader.
        ambiguous = finding.rule == "mlperf.fields"
        yield replace(finding, severity=Severity.ERROR) if ambiguous else finding
    benchmark = _benchmark_of(log, ruleset)
    if benchmark is not None:
        rules = of_scope(ruleset.strict, "mlperf.log")
        yield from apply_all(rules, log, benchmark, path=log.path)


def check_result_strictly(result: Result, ruleset: Ruleset) -> Iterator[Finding]:
    """Yield what is wrong with a result: with each of its logs, and with all of them together."""
    yield from result.findings
    for run in result.runs:
        yield from check_log_strictly(run.log, ruleset)
    # A folder with another name does not keep its logs from being held to the rules of theirs.
    named = (_benchmark_of(run.log, ruleset) for run in result.runs)
    benchmark = ruleset.benchmarks.get(result.package.benchmark) or next(filter(None, named), None)
    if benchmark is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules, name = of_scope(ruleset.strict, "mlperf.result"), result.package.name
        yield from apply_all(rules, result, benchmark, path=name, runs=places)


def check_submissions(packages: list[Package], ruleset: Ruleset) -> Iterator[Finding]:
    """Yield what is wrong with the submissions that hold ``packages``, beside their logs."""
    for submission in submissions_of(packages):
        rules = of_scope(ruleset.strict, "submission")
        yield from apply_all(rules, submission, path=submission.org)


def _benchmark_of(log: Log, ruleset: Ruleset) -> Benchmark | None:
    name = log.value(keys.SUBMISSION_BENCHMARK)
    return ruleset.benchmarks.get(name) if isinstance(name, str) else None
