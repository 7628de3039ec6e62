"""Find what is to be judged, and the ruleset of each result."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.log import keys
from hybridperf.log.package import ROUND, find_packages, find_results
from hybridperf.log.reader import read_published_log
from hybridperf.rules.mlperf.ruleset import known_benchmarks, known_rulesets, load_ruleset
from hybridperf.rules.rule import RULES
from hybridperf.rules.verdict import RULESET
from hybridperf.spelling import did_you_mean
from hybridperf.untrusted import exists

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.package import Package

__all__ = ["Targets", "choose_ruleset", "find_targets"]


@dataclass
class Targets:
    """Logs and results to judge, each with the name of its ruleset or the file of one."""

    name: str  #: paths, as they were given
    logs: list[tuple[Path, str | Path]] = field(default_factory=list)
    packages: list[tuple[Package, str | Path]] = field(default_factory=list)  #: ours first
    barred: list[Finding] = field(default_factory=list)  #: folders that cannot be read

    @property
    def tests_convergence(self) -> bool:
        """Tell whether the package checker of a round tests convergence."""
        return any("checker.convergence" in load_ruleset(each).rules for each in self._rounds)

    @property
    def _rounds(self) -> list[str | Path]:
        """Return the rulesets of MLPerf that judge results."""
        sources = dict.fromkeys(source for _, source in self.packages)
        return [source for source in sources if source != RULESET]

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each round judged by another's ruleset, and untested ruleset."""
        for name, source in dict.fromkeys((_round_of(each), its) for each, its in self.packages):
            if isinstance(source, str) and name and source != _ruleset_name(name):
                yield visible(
                    f"{name} is judged by {source}, which is not the ruleset of that round"
                )
        for source in self._rounds:
            ruleset = load_ruleset(source)
            if ruleset.untested:
                yield visible(
                    f"{ruleset.name} was not tested on logs: none of its round was at hand"
                )


def find_targets(paths: Sequence[Path], ruleset: str | Path | None = None) -> Targets:
    """Find the logs and results at or below ``paths``, each result once.

    Without ``ruleset``, a result is judged by the ruleset of the round whose folder it is in.

    Raises:
        UserError: exit status 4 if there is nothing at a path; exit status 2 if there are too many
            logs, if a ruleset cannot judge what is there, or if none can be chosen.
    """
    paths = [each for path in paths for each in _expanded(path)]
    if isinstance(ruleset, Path):
        _refuse_unknown_rules(ruleset)
    targets, seen = Targets(", ".join(map(str, paths))), set[Path]()
    above = Path(os.path.commonpath([path.absolute() for path in paths]))
    find = find_results if ruleset == RULESET else find_packages
    for path in paths:
        if not exists(path) or not os.access(path, os.R_OK):
            raise _nothing_to_check(path)
        if path.is_file():
            targets.logs.append((path, ruleset or choose_ruleset(path)))
            continue
        if ruleset == RULESET:
            _refuse_rounds(path)
        packages = find(path, targets.barred) if path.is_dir() else []
        if not packages and not targets.barred:
            raise _nothing_to_check(path)
        chosen = choose_ruleset(path) if ruleset is None else ruleset
        for package in packages:
            if package.folder in seen:
                continue
            seen.add(package.folder)
            named = replace(package, base=above) if len(paths) > 1 else package
            source = chosen
            if ruleset is None and (name := _round_of(package)):
                source = _ruleset_of_round(name, path)
            targets.packages.append((named, source))
    targets.packages.sort(key=lambda each: each[1] != RULESET)
    return targets


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
        return _ruleset_of_round(rounds[0], path)
    if _is_of_mlperf(path, packages[0].folder if packages else None):
        found = "logs of MLPerf, and no folder training_results_v<round> around them"
        raise _refuse(path, "a ruleset", found, _known_remedy())
    return RULESET


def _round_of(package: Package) -> str:
    """Return the name of the round's folder that ``package`` is in; "" if it is in none."""
    return next((p.name for p in package.folder.parents if ROUND.fullmatch(p.name)), "")


def _ruleset_of_round(name: str, path: Path) -> str:
    """Return the ruleset of the round with the folder ``name``, which is in or around ``path``.

    Raises:
        UserError: exit status 2 if it has none.
    """
    ruleset = _ruleset_name(name)
    if ruleset not in known_rulesets():
        raise _refuse(path, "a round that has a ruleset", name, _known_remedy())
    return ruleset


def _ruleset_name(name: str) -> str:
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


def _expanded(path: Path) -> list[Path]:
    """Return the paths that the pattern ``path`` stands for, where no file has that name."""
    if exists(path) or not glob.has_magic(str(path)):
        return [path]
    return [Path(each) for each in sorted(glob.glob(str(path)))] or [path]  # noqa: PTH207 - Path.glob takes no absolute pattern


def _refuse_rounds(path: Path) -> None:
    """Refuse to judge results of a round of MLPerf by the ruleset of this suite.

    Raises:
        UserError: exit status 2.
    """
    packages = find_packages(path, []) if path.is_dir() else []
    if name := next(filter(None, map(_round_of, packages)), ""):
        remedy = "leave --ruleset out, or name that of the round"
        raise _refuse(path, "a ruleset that fits", f"{RULESET} for {name}", remedy)


def _refuse_unknown_rules(path: Path) -> None:
    """Refuse a ruleset in a file that names a rule which there is not.

    Raises:
        UserError: exit status 2.
    """
    for name in sorted(load_ruleset(path).rules.keys() - RULES.keys()):
        found = f"strict.rules.{name!r:.40}, which is no rule"
        remedy = did_you_mean(name, RULES, "'hybridperf check --rules' lists them")
        raise _refuse(path, "a ruleset", found, remedy)


def _known_remedy() -> str:
    known = ", ".join(name for name in known_rulesets() if name != RULESET)
    return f"name a ruleset with --ruleset: one of {known}"


def _refuse(path: Path, expected: str, found: str, remedy: str) -> UserError:
    return UserError(
        Finding("check.ruleset", expected, found, remedy, path=str(path)), ExitCode.USAGE
    )


def _nothing_to_check(path: Path) -> UserError:
    """Return the error for a ``path`` that is missing, unreadable or without logs."""
    found = "no such file or folder" if not exists(path) else "no results"
    remedy = "name a log, or the folder given to 'hybridperf run --out'"
    if exists(path) and not os.access(path, os.R_OK):
        found, remedy = "no permission to read it", "ask its owner for permission to read it"
    finding = Finding(
        "check.path",
        "a log, or a folder with <org>/results/<system>/<benchmark>/result_<n>.txt in it",
        found,
        remedy,
        path=str(path),
    )
    return UserError(finding, ExitCode.ENVIRONMENT)
