"""Check several paths at once, each result by the ruleset that fits it."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.log.package import find_packages
from hybridperf.rules.check import RULESET, check_path, check_results, nothing_to_check
from hybridperf.rules.mlperf.check_round import check_packages, check_round
from hybridperf.rules.mlperf.choose import (
    choose_ruleset,
    round_of,
    ruleset_name,
    ruleset_of_round,
)
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.rules.rule import RULES
from hybridperf.rules.verdict import Verdict
from hybridperf.spelling import did_you_mean
from hybridperf.untrusted import exists

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.log.package import Package
    from hybridperf.rules.mlperf.check_round import Mode
    from hybridperf.score.rcp import RcpSets

__all__ = ["check_targets"]


@dataclass
class _Targets:
    """What is to be checked, and by which rulesets."""

    logs: list[tuple[Path, str | Path]] = field(default_factory=list)
    barred: list[Finding] = field(default_factory=list)  #: folders that cannot be read
    ours: list[Package] = field(default_factory=list)
    rounds: list[tuple[Package, str | Path]] = field(default_factory=list)


def check_targets(
    paths: Sequence[Path],
    ruleset: str | Path | None,
    mode: Mode | None,
    jobs: int,
    references: RcpSets | None = None,
) -> tuple[Verdict, list[str]]:
    """Check logs and results at or below ``paths``; return the verdict, and warnings.

    Without ``ruleset``, a result is judged by that of the round whose folder it is in. Modes
    ``package`` and ``strict`` test convergence against ``references``, where they are given.

    Raises:
        UserError: exit status 4 if there is nothing to check; exit status 2 if there are too many
            logs, if a ruleset does not fit what it should judge, or if none can be chosen.
    """
    paths = [each for path in paths for each in _expanded(path)]
    if isinstance(ruleset, Path):
        _refuse_unknown_rules(ruleset)
    if len(paths) == 1 and ruleset == RULESET:
        _refuse_rounds(paths[0])
        return check_path(paths[0], jobs), []
    targets = _targets(paths, ruleset)
    if mode == "package":
        _refuse_parts(targets, references)
    verdicts = [
        check_path(path) if source == RULESET else check_round(path, source, mode or "as-published")
        for path, source in targets.logs
    ]
    named = ", ".join(map(str, paths))
    if targets.ours or not (targets.rounds or verdicts):
        verdicts.append(check_results(targets.ours, named, jobs))
    if targets.rounds:
        verdicts.append(
            check_packages(targets.rounds, mode or "as-published", named, jobs, references)
        )
    verdict = verdicts[0] if len(verdicts) == 1 else _merged(verdicts, named)
    verdict = replace(verdict, findings=(*targets.barred, *verdict.findings))
    if not verdict.judged and not verdict.unreadable:
        raise _does_not_fit(verdict, named)
    warnings = list(_warnings(targets.rounds))
    if mode == "strict" and references is None and _tests_convergence(targets):
        warnings.append("convergence was not tested; name the reference points with --rcp-set")
    return verdict, warnings


def _refuse_parts(targets: _Targets, references: RcpSets | None) -> None:
    """Refuse what mode ``package`` cannot judge whole.

    Raises:
        UserError: exit status 2.
    """
    if targets.logs:
        reason = "expected folders of results with --mode package, found the log "
        reason += f"{visible(str(targets.logs[0][0]))}; name the folder that it is in"
    elif references is None and _tests_convergence(targets):
        reason = "expected the reference convergence points of the round with --mode package, "
        reason += "found none; name their folder with --rcp-set"
    else:
        return
    raise UserError(f"{reason}.", ExitCode.USAGE)


def _tests_convergence(targets: _Targets) -> bool:
    """Tell whether the package checker of a round tests convergence."""
    sources = dict.fromkeys(source for _, source in targets.rounds)
    return any("checker.convergence" in load_ruleset(source).strict for source in sources)


def _refuse_unknown_rules(path: Path) -> None:
    """Refuse a ruleset in a file that names a rule which there is not.

    Raises:
        UserError: exit status 2.
    """
    for name in sorted(load_ruleset(path).strict.keys() - RULES.keys()):
        found = f"strict.rules.{name!r:.40}, which is no rule"
        remedy = did_you_mean(name, RULES, "'hybridperf check --rules' lists them")
        raise UserError(
            Finding("check.ruleset", "a ruleset", found, remedy, path=str(path)), ExitCode.USAGE
        )


def _expanded(path: Path) -> list[Path]:
    """Return the paths that the pattern ``path`` stands for, where no file has that name."""
    if exists(path) or not glob.has_magic(str(path)):
        return [path]
    return [Path(each) for each in sorted(glob.glob(str(path)))] or [path]  # noqa: PTH207 - Path.glob takes no absolute pattern


def _targets(paths: Sequence[Path], ruleset: str | Path | None) -> _Targets:
    targets = _Targets()
    seen = set[Path]()
    above = Path(os.path.commonpath([path.absolute() for path in paths]))
    for path in paths:
        if not exists(path) or not os.access(path, os.R_OK):
            raise nothing_to_check(path)
        if path.is_file():
            targets.logs.append((path, ruleset or choose_ruleset(path)))
            continue
        packages = find_packages(path, targets.barred)
        if not packages and not targets.barred:
            raise nothing_to_check(path)
        chosen = choose_ruleset(path) if ruleset is None else ruleset
        for package in packages:
            if package.folder in seen:
                continue
            seen.add(package.folder)
            named = replace(package, base=above) if len(paths) > 1 else package
            source = chosen
            if ruleset is None and (name := round_of(package)):
                source = ruleset_of_round(name, path)
            if source == RULESET:
                targets.ours.append(named)
            else:
                targets.rounds.append((named, source))
    return targets


def _refuse_rounds(path: Path) -> None:
    packages = find_packages(path, []) if path.is_dir() else []
    name = next(filter(None, map(round_of, packages)), "")
    if name:
        found, remedy = f"{RULESET} for {name}", "leave --ruleset out, or name that of the round"
        finding = Finding("check.ruleset", "a ruleset that fits", found, remedy, path=str(path))
        raise UserError(finding, ExitCode.USAGE)


def _warnings(rounds: Iterable[tuple[Package, str | Path]]) -> Iterable[str]:
    """Yield a sentence for each round judged by another's ruleset, and each untested ruleset."""
    for name, source in dict.fromkeys((round_of(package), source) for package, source in rounds):
        if isinstance(source, str) and name and source != ruleset_name(name):
            yield visible(f"{name} is judged by {source}, which is not the ruleset of that round")
    for source in dict.fromkeys(source for _, source in rounds):
        ruleset = load_ruleset(source)
        if ruleset.untested:
            yield visible(f"{ruleset.name} was not tested on logs: none of its round was at hand")


def _does_not_fit(verdict: Verdict, path: str) -> UserError:
    unknown = sorted({result.package.benchmark for result in verdict.results})
    named = ", ".join(unknown[:5]) or next((log.why for log in verdict.all_logs), "")
    known = sorted(load_ruleset(verdict.ruleset).benchmarks) if " " not in verdict.ruleset else []
    expected = f"results that {verdict.ruleset} has rules for: {', '.join(known)}"
    others = [
        name
        for name in known_rulesets()
        if name.startswith("mlperf-") and set(unknown) & set(load_ruleset(name).benchmarks)
    ]
    remedy = f"choose {' or '.join(others[-3:])}" if others else "no ruleset has rules for them"
    return UserError(Finding("check.ruleset", expected, named, remedy, path=path), ExitCode.USAGE)


def _merged(verdicts: Sequence[Verdict], path: str) -> Verdict:
    return Verdict(
        path,
        tuple(log for each in verdicts for log in each.logs),
        tuple(finding for each in verdicts for finding in each.findings),
        " and ".join(dict.fromkeys(each.ruleset for each in verdicts)),
        " and ".join(dict.fromkeys(each.mode for each in verdicts)),
        tuple(result for each in verdicts for result in each.results),
        tuple(log for each in verdicts for log in each.alone),
    )
