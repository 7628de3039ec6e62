"""Find and read results in MLPerf's layout, of this suite or of MLPerf's rounds.

``<org>/systems/<system>.json`` and ``<org>/results/<system>/<benchmark>/result_<n>.txt``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, Severity, unreadable, visible
from hybridperf.log.log import Budget
from hybridperf.log.reader import read_log, read_published_log
from hybridperf.untrusted import (
    DOCUMENT_CAP_BYTES,
    RATIO_CAP,
    WEIGHTS_CAP_BYTES,
    number,
    open_bounded,
    parse_object,
    read_bounded,
    read_object,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from hybridperf.log.log import Log

__all__ = [
    "MANIFEST_FORMAT",
    "NAME",
    "PUT_BACK",
    "ROUND",
    "TASK_FILE",
    "Package",
    "Result",
    "SealedRun",
    "edition_of",
    "find_packages",
    "find_results",
    "has_manifests",
    "locked_files",
    "only_result",
    "predictions_name",
    "published_runs",
    "read_package",
    "read_result",
    "result_at",
    "result_names",
    "scaling_factor",
]

#: folder name of a published round
ROUND: Final = re.compile(r"training_results_v([0-9]{1,3})\.([0-9]{1,3})")
_GLOB: Final = "result_*.txt"  #: rounds have result_<n>.txt and result_<time>_<nn>.txt
_LOG: Final = re.compile(r"result_.*\.txt", re.DOTALL)
_SCALING: Final = "scaling.json"
_RESULT: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  #: names of organisations and systems
TASK_FILE: Final = "task.toml"  #: next to the logs of a user-defined task
MANIFEST_FORMAT: Final = 1  #: format of the manifests that this suite writes and reads
PUT_BACK: Final = "restore what the harness wrote"  #: remedy for changed sealed files


@dataclass(frozen=True, slots=True)
class Package:
    """The location of the result of a ``benchmark`` on a ``system`` of an ``org``."""

    root: Path
    org: str
    system: str
    benchmark: str
    base: Path | None = field(default=None, compare=False)  #: folder that displayed paths start at

    @property
    def folder(self) -> Path:
        """Return the folder of the result's files."""
        return self.root / self.org / "results" / self.system / self.benchmark

    @property
    def system_file(self) -> Path:
        """Return the path of the system description."""
        return self.root / self.org / "systems" / f"{self.system}.json"

    @property
    def task_file(self) -> Path:
        """Return the path of the task file, which exists for user-defined tasks only."""
        return self.folder / TASK_FILE

    def name_of(self, path: Path) -> str:
        """Return the displayed path of a submission file, with control characters escaped."""
        return visible(path.relative_to(self.base or self.root).as_posix())

    @property
    def name(self) -> str:
        """Return the displayed path of the result's folder, with control characters escaped."""
        return self.name_of(self.folder)


@dataclass(frozen=True, slots=True)
class SealedRun:
    """One finished attempt: its log and its manifest."""

    number: int
    log: Log
    manifest: dict[str, object] | None  #: None if there is none, as in MLPerf rounds

    def fact(self, *keys: str) -> object:
        """Return the manifest's value at nested ``keys``; None if there is none."""
        value: object = self.manifest
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """All attempts at one benchmark on one system, and the findings from reading them.

    Results are equal if they are one object, so that a cache may have a result as its key.
    """

    package: Package
    runs: tuple[SealedRun, ...]
    system: dict[str, object] | None
    system_sha256: str
    findings: tuple[Finding, ...]


def result_names(number: int) -> tuple[str, str]:
    """Return the file names of an attempt's log and manifest."""
    return f"result_{number}.txt", f"result_{number}.json"


def predictions_name(number: int) -> str:
    """Return the file name of an attempt's kept predictions."""
    return f"predictions_{number}.npy"


def only_result(found: Sequence[Package], path: Path, rule: str) -> Package:
    """Return the only result in ``found``, the results under ``path``.

    Raises:
        UserError: a finding of ``rule``; exit status 2 if there are several, 4 if there is none.
    """
    if not found and not path.exists():
        raise UserError.of(
            rule,
            "the folder of a result",
            "no such folder",
            "name one that exists",
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        )
    if len(found) != 1:
        raise UserError.of(
            rule,
            "one result, in <org>/results/<system>/<benchmark>",
            f"{len(found)} results" if found else "none",
            "name the folder of one result",
            path=str(path),
            exit_code=ExitCode.USAGE if found else ExitCode.ENVIRONMENT,
        )
    return found[0]


def find_results(path: Path, barred: list[Finding] | None = None) -> list[Package]:
    """Return every result at or below ``path``, sorted by organisation, system and benchmark.

    ``path`` may be a result's folder, one organisation's submission, or a folder of submissions.
    Findings on folders that cannot be read are appended to ``barred``.

    Raises:
        UserError: exit status 4 if ``barred`` is None and a folder cannot be read.
    """
    found = map(result_at, _folders_of_logs(path, _RESULT, barred))
    packages = [package for package in found if package is not None]
    return sorted(packages, key=lambda each: (each.org, each.system, each.benchmark))


def find_packages(path: Path, barred: list[Finding] | None = None) -> list[Package]:
    """Return every result at or below ``path``, sorted by round, organisation and name.

    ``path`` may be a result's folder, one organisation's submission, a round, or a folder of
    rounds; each round is a separate root. Logs may have any name that a round allows. ``barred`` is
    as in `find_results`.

    Raises:
        UserError: as `find_results`.
    """
    top = _absolute(path)
    folders = _folders_of_logs(path, _LOG, barred)
    packages = [
        dataclasses.replace(package, base=top if package.root.is_relative_to(top) else package.root)
        for package in map(result_at, folders)
        if package is not None
    ]
    return sorted(packages, key=lambda each: (each.root, each.org, each.system, each.benchmark))


def _folders_of_logs(
    path: Path, name: re.Pattern[str], barred: list[Finding] | None = None
) -> list[Path]:
    """Return the folders at or below ``path`` with logs whose file name matches ``name``, sorted.

    Links are not followed. ``barred`` and Raises are as in `find_results`.
    """
    locked: list[Finding] = []
    folders: list[Path] = []
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                has_logs, inside = False, []
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        inside.append(Path(entry.path))
                    has_logs = has_logs or name.fullmatch(entry.name) is not None
        except (OSError, ValueError) as error:
            if (finding := unreadable(error, str(folder))) is not None:
                locked.append(finding)
            continue
        if has_logs and ".attempt" not in str(folder):
            folders.append(_absolute(folder))
        waiting += inside
    if barred is not None:
        barred += sorted(locked, key=lambda each: each.path)
    elif locked:
        more = f", and {len(locked) - 1} more" if len(locked) > 1 else ""
        finding = dataclasses.replace(locked[0], found=f"{locked[0].found}{more}")
        raise UserError(finding, ExitCode.ENVIRONMENT)
    return sorted(folders)


def locked_files(package: Package, seen: Collection[str] = ()) -> Iterator[Finding]:
    """Yield a finding for each file of a result, except ``seen`` files, that cannot be opened."""
    inside = [each for each in sorted(package.folder.iterdir()) if each.name not in seen]
    named = {path: package.name_of(path) for path in inside}
    # Displayed paths may start at a folder below the folder of the descriptions.
    named[package.system_file] = str(package.system_file.relative_to(package.root))
    for path, name in named.items():
        try:
            open_bounded(path, WEIGHTS_CAP_BYTES).close()
        except (OSError, ValueError) as error:
            if (finding := unreadable(error, name)) is not None:
                yield finding


def _absolute(path: Path) -> Path:
    """Return ``path`` as an absolute path without resolving links, whose names may name a round."""
    return path.resolve() if ".." in path.parts else path.absolute()


def result_at(folder: Path) -> Package | None:
    """Return the result in ``folder``; None if the path does not match MLPerf's layout."""
    match folder.parts:
        case (*_, _, org, "results", system, benchmark):
            return Package(folder.parents[3], org, system, benchmark)
    return None


def read_result(package: Package) -> Result:
    """Read every attempt of a result, and report unreadable files as findings."""
    findings = [*_named(package)]
    numbers = sorted(
        int(match[1])
        for path in package.folder.iterdir()
        if (match := _RESULT.fullmatch(path.name)) is not None
    )
    budget = Budget()
    runs = tuple(_read_run(package, number, findings, budget) for number in numbers)
    findings += locked_files(package, [run.log.path.rpartition("/")[2] for run in runs])
    system = _read_object(package.system_file, package.root, "system.file", findings)
    digest = "" if system is None else hashlib.sha256(package.system_file.read_bytes()).hexdigest()
    return Result(package, runs, system, digest, tuple(findings))


def _named(package: Package) -> Iterator[Finding]:
    """Yield a finding for each malformed folder name."""
    for name in (package.org, package.system, package.benchmark):
        if not NAME.fullmatch(name):
            expected = "names of 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
            remedy = "rename the folder"
            yield Finding(
                "result.name", expected, visible(f"{name!r:.80}"), remedy, path=package.name
            )


def _read_run(package: Package, number: int, findings: list[Finding], budget: Budget) -> SealedRun:
    text, manifest = (package.folder / name for name in result_names(number))
    log = read_log(text, budget)
    log.path = package.name_of(text)
    log.findings = [_at(finding, log.path) for finding in log.findings]
    facts = _read_object(manifest, package.root, "result.manifest", findings)
    if facts is not None and facts.get("format") != MANIFEST_FORMAT:
        place = visible(str(manifest.relative_to(package.root)))
        expected, found = f"format = {MANIFEST_FORMAT}", visible(f"{facts.get('format')!r:.40}")
        remedy = "check it with the release of this suite that wrote it"
        findings.append(Finding("result.manifest", expected, found, remedy, path=place))
    return SealedRun(number, log, facts)


def _read_object(
    path: Path, root: Path, rule: str, findings: list[Finding]
) -> dict[str, object] | None:
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if unreadable(error, ""):  # which `locked_files` reports
            return None
        place = visible(str(path.relative_to(root)))
        findings.append(
            Finding(rule, "a JSON file that can be read", reason(error), PUT_BACK, path=place)
        )
        return None


def _at(finding: Finding, path: str) -> Finding:
    return dataclasses.replace(finding, path=path)


def edition_of(package: Package) -> str:
    """Return the round of MLPerf, such as ``2.1``, that a result's root or a link to it names."""
    for root in (package.root, package.root.resolve()):
        if match := ROUND.fullmatch(root.name):
            return f"{int(match[1])}.{int(match[2])}"
    return ""


def read_package(package: Package, runs: Iterable[SealedRun] | None = None) -> Result:
    """Read a result: strictly if it has this suite's manifests, else as MLPerf's checker does.

    ``runs`` are the runs of an MLPerf result, if they were read before.
    """
    if runs is None and has_manifests(package):
        return read_result(package)
    runs = tuple(published_runs(package, Budget()) if runs is None else runs)
    findings = [*locked_files(package, [run.log.path.rpartition("/")[2] for run in runs])]
    system = _read_system(package, findings)
    return Result(package, runs, system, "", tuple(findings))


def published_runs(package: Package, budget: Budget | None = None) -> Iterator[SealedRun]:
    """Yield the runs of a result, each read when it is asked for, as `read_package` reads them.

    ``budget`` is of all runs together, for callers that keep them.
    """
    if has_manifests(package):
        yield from read_result(package).runs
        return
    paths = sorted(package.folder.glob(_GLOB), key=_natural)
    for attempt, path in enumerate(paths):
        yield SealedRun(attempt, read_published_log(path, package.name_of(path), budget), None)


def scaling_factor(package: Package) -> float | None:
    """Return the factor in ``scaling.json``, which MLPerf's tools write; None if there is none.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a JSON object with a factor from 1 to `RATIO_CAP`.
    """
    try:
        stated = read_object(package.folder / _SCALING).get("scaling_factor")
    except FileNotFoundError:
        return None
    if (factor := number(stated, 1, RATIO_CAP)) is None:
        raise ValueError(f"a scaling_factor of {stated!r:.40}")
    return float(factor)


def has_manifests(package: Package) -> bool:
    """Tell whether a result has manifests, which the harness of this suite writes."""
    return next(package.folder.glob("result_*.json"), None) is not None


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a natural sort key, by which result_10 follows result_9."""
    return [
        (int(part), "") if part.isdigit() else (0, part)
        for part in re.findall(r"[0-9]{1,40}|[^0-9]+", path.name)
    ]


def _read_system(package: Package, findings: list[Finding]) -> dict[str, object] | None:
    path = package.system_file
    try:
        text = read_bounded(path, DOCUMENT_CAP_BYTES).decode("utf-8-sig", errors="replace")
        system = parse_object(text, last_of_keys=True)
    except FileNotFoundError:  # reported by a layout rule
        return None
    except (OSError, ValueError) as error:
        if not unreadable(error, ""):  # which `locked_files` reports
            findings.append(_unclear(package, reason(error), Severity.ERROR))
        return None
    try:
        parse_object(text)
    except ValueError as error:  # rounds accepted duplicate keys
        findings.append(_unclear(package, reason(error), Severity.WARNING))
    return system


def _unclear(package: Package, found: str, severity: Severity) -> Finding:
    expected, remedy = "one JSON object without duplicate keys", "correct the file"
    place = package.name_of(package.system_file)
    return Finding("system.file", expected, found, remedy, place, severity=severity)
