"""Choose the default ruleset of a log or folder."""

from __future__ import annotations

import os
from pathlib import Path

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.log.published import read_published_log
from hybridperf.log.rounds import ROUND, find_packages
from hybridperf.rules.check import RULESET
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset

__all__ = ["choose_ruleset"]


def choose_ruleset(path: Path) -> str:
    """Return the ruleset of the round in or around ``path``, or else that of this suite.

    Raises:
        UserError: exit status 2 if there are several rounds, if the round has no ruleset, or if no
            folder names the round of MLPerf logs.
    """
    top = Path(os.path.realpath(path))  # tolerates symbolic link loops
    inside = [*top.parents, top]
    packages = find_packages(path) if path.is_dir() else []
    names = {folder.name for folder in inside} | {package.root.name for package in packages}
    rounds = {match[0]: match for match in map(ROUND.fullmatch, names) if match}
    if len(rounds) > 1:
        raise _refuse(path, "the logs of one round", " and ".join(sorted(rounds)))
    for name, match in rounds.items():
        ruleset = f"mlperf-training-{match[1]}.{match[2]}.0"
        if ruleset not in known_rulesets():
            raise _refuse(path, f"one of the rulesets {', '.join(known_rulesets())}", name)
        return ruleset
    if _is_of_mlperf(path, packages[0].folder if packages else None):
        found = "logs of MLPerf, and no folder training_results_v<round> around them"
        raise _refuse(path, "a ruleset", found)
    return RULESET


def _is_of_mlperf(path: Path, folder: Path | None) -> bool:
    if folder is not None and next(folder.glob("result_*.json"), None) is not None:
        return False
    log = path if path.is_file() else next(folder.glob("result_*.txt"), None) if folder else None
    if log is None:
        return False
    named = read_published_log(log, "").value(keys.SUBMISSION_BENCHMARK)
    return any(
        named in load_ruleset(ruleset).benchmarks
        for ruleset in known_rulesets()
        if ruleset != RULESET and isinstance(named, str)
    )


def _refuse(path: Path, expected: str, found: str) -> UserError:
    remedy = "name a ruleset with --ruleset, such as mlperf-training-2.1.0"
    return UserError(
        Finding("check.ruleset", expected, found, remedy, path=str(path)), ExitCode.USAGE
    )
