"""Choose the ruleset by which results are judged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.log.package import ROUND, find_packages
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import RULESET
from hybridperf.rules.mlperf.ruleset import known_benchmarks, known_rulesets

if TYPE_CHECKING:
    from hybridperf.log.package import Package

__all__ = ["choose_ruleset", "round_of", "ruleset_name", "ruleset_of_round"]


def choose_ruleset(path: Path) -> str:
    """Return the ruleset of the round in or around ``path``, or else that of this suite.

    Of several rounds, the first.

    Raises:
        UserError: exit status 2 if the round has no ruleset, or if no folder names the round of
            MLPerf logs.
    """
    top = Path(os.path.realpath(path))  # tolerates symbolic link loops
    inside = [*top.parents, top]
    packages = find_packages(path, []) if path.is_dir() else []
    names = {folder.name for folder in inside} | {package.root.name for package in packages}
    rounds = sorted(name for name in names if ROUND.fullmatch(name))
    if rounds:
        return ruleset_of_round(rounds[0], path)
    if _is_of_mlperf(path, packages[0].folder if packages else None):
        found = "logs of MLPerf, and no folder training_results_v<round> around them"
        raise _refuse(path, "a ruleset", found)
    return RULESET


def round_of(package: Package) -> str:
    """Return the name of the round's folder that ``package`` is in; "" if it is in none."""
    return next((p.name for p in package.folder.parents if ROUND.fullmatch(p.name)), "")


def ruleset_of_round(name: str, path: Path) -> str:
    """Return the ruleset of the round with the folder ``name``, which is in or around ``path``.

    Raises:
        UserError: exit status 2 if it has none.
    """
    ruleset = ruleset_name(name)
    if ruleset not in known_rulesets():
        raise _refuse(path, "a round that has a ruleset", name)
    return ruleset


def ruleset_name(name: str) -> str:
    """Return what the ruleset of the round with the folder ``name`` is called; "" if it is none."""
    match = ROUND.fullmatch(name)
    return f"mlperf-training-{match[1]}.{match[2]}.0" if match else ""


def _is_of_mlperf(path: Path, folder: Path | None) -> bool:
    if folder is not None and next(folder.glob("result_*.json"), None) is not None:
        return False
    log = path if path.is_file() else next(folder.glob("result_*.txt"), None) if folder else None
    if log is None:
        return False
    return read_published_log(log, "").value(keys.SUBMISSION_BENCHMARK) in list(known_benchmarks())


def _refuse(path: Path, expected: str, found: str) -> UserError:
    known = ", ".join(name for name in known_rulesets() if name != RULESET)
    remedy = f"name a ruleset with --ruleset: one of {known}"
    return UserError(
        Finding("check.ruleset", expected, found, remedy, path=str(path)), ExitCode.USAGE
    )
