"""Check a round of MLPerf: in mode ``as-published`` its logs, in mode ``strict`` all of it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Literal

from suite.findings import visible
from suite.jobs import spread
from suite.logs.published import read_published_log
from suite.logs.rounds import find_packages, read_package
from suite.logs.strict_json import exists
from suite.rules.bounded import bounded
from suite.rules.check import Verdict, nothing_to_check
from suite.rules.mlperf.as_published import judge
from suite.rules.mlperf.ruleset import load_ruleset
from suite.rules.mlperf.strict import check_log_strictly, check_result_strictly, check_submissions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.findings import Finding
    from suite.logs.package import Package, Result
    from suite.rules.mlperf.ruleset import Ruleset

__all__ = ["Mode", "check_published_result", "check_round"]

Mode = Literal["as-published", "strict"]


def check_round(path: Path, ruleset: str, mode: Mode, jobs: int = 1) -> Verdict:
    """Check the log ``path``, or every result in MLPerf's layout at or below the folder ``path``.

    Raises:
        Refusal: exit status 4 where there is nothing to check.
    """
    if not exists(path) or not os.access(path, os.R_OK):
        raise nothing_to_check(path)
    rules = load_ruleset(ruleset)
    if path.is_file():
        log = read_published_log(path, visible(str(path)))
        alone = judge(log, rules) if mode == "as-published" else check_log_strictly(log, rules)
        return Verdict(str(path), (log.path,), tuple(alone), ruleset, mode)
    packages = find_packages(path)
    if not packages:
        raise nothing_to_check(path)
    names: list[str] = []

    def found() -> Iterator[Finding]:
        for logs, findings in spread(partial(_check, ruleset=ruleset, mode=mode), packages, jobs):
            names.extend(logs)
            yield from findings
        if mode == "strict":
            yield from check_submissions(packages, rules)

    findings = tuple(bounded(found(), visible(str(path))))
    return Verdict(str(path), tuple(names), findings, ruleset, mode)


def _check(package: Package, ruleset: str, mode: Mode) -> tuple[list[str], list[Finding]]:
    result = read_package(package)
    names = [run.log.path for run in result.runs]
    return names, check_published_result(result, load_ruleset(ruleset), mode)


def check_published_result(result: Result, rules: Ruleset, mode: Mode) -> list[Finding]:
    """Return what is wrong with a result, or in mode ``as-published`` with its logs."""
    found = (
        check_result_strictly(result, rules)
        if mode == "strict"
        else (finding for run in result.runs for finding in judge(run.log, rules))
    )
    return list(bounded(found, result.package.name))
