"""Find and read results in MLPerf's layout.

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
from hybridperf.findings import Finding, unreadable, visible
from hybridperf.log.log import Budget
from hybridperf.log.reader import read_log
from hybridperf.untrusted import WEIGHTS_CAP_BYTES, open_bounded, read_object, reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hybridperf.log.log import Log

__all__ = [
    "MANIFEST_FORMAT",
    "NAME",
    "PUT_BACK",
    "TASK_FILE",
    "Package",
    "Result",
    "SealedRun",
    "absolute",
    "find_results",
    "folders_of_logs",
    "locked_files",
    "only_result",
    "package_at",
    "predictions_name",
    "read_result",
    "result_names",
]

_RESULT: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  #: of organisations and systems
TASK_FILE: Final = "task.toml"  #: next to the logs of a user-defined task
MANIFEST_FORMAT: Final = 1  #: of the manifests that this suite writes and reads
PUT_BACK: Final = "restore what the harness wrote"  #: remedy for changed sealed files


@dataclass(frozen=True, slots=True)
class Package:
    """The location of the result of a ``benchmark`` on a ``system`` of an ``org``."""

    root: Path
    org: str
    system: str
    benchmark: str
    base: Path | None = field(default=None, compare=False)  #: displayed paths are relative to it

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

    Results are equal if they are one object, so that what follows from one can be kept by it.
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
    if len(found) != 1:
        finding = Finding(
            rule,
            "one result, in <org>/results/<system>/<benchmark>",
            f"{len(found)} results" if found else "none",
            "name the folder of one result",
            path=str(path),
        )
        raise UserError(finding, ExitCode.USAGE if found else ExitCode.ENVIRONMENT)
    return found[0]


def find_results(path: Path, barred: list[Finding] | None = None) -> list[Package]:
    """Return every result at or below ``path``, sorted by organisation, system and benchmark.

    ``path`` may be a result's folder, one organisation's submission, or a folder of those.
    ``barred`` is that of `folders_of_logs`.

    Raises:
        UserError: as `folders_of_logs`.
    """
    found = map(package_at, folders_of_logs(path, _RESULT, barred))
    packages = [package for package in found if package is not None]
    return sorted(packages, key=lambda each: (each.org, each.system, each.benchmark))


def folders_of_logs(
    path: Path, name: re.Pattern[str], barred: list[Finding] | None = None
) -> list[Path]:
    """Return the folders at or below ``path`` with logs whose file name matches ``name``, sorted.

    Links are not followed. Findings on folders that cannot be read are appended to ``barred``.

    Raises:
        UserError: exit status 4 if ``barred`` is None and a folder cannot be read.
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
            folders.append(absolute(folder))
        waiting += inside
    if barred is not None:
        barred += sorted(locked, key=lambda each: each.path)
    elif locked:
        more = f", and {len(locked) - 1} more" if len(locked) > 1 else ""
        finding = dataclasses.replace(locked[0], found=f"{locked[0].found}{more}")
        raise UserError(finding, ExitCode.ENVIRONMENT)
    return sorted(folders)


def locked_files(package: Package, seen: Collection[str] = ()) -> Iterator[Finding]:
    """Yield a finding for each file of a result, but those ``seen``, that cannot be opened."""
    inside = [each for each in sorted(package.folder.iterdir()) if each.name not in seen]
    named = {path: package.name_of(path) for path in inside}
    # What is displayed may be relative to a folder below that of the descriptions.
    named[package.system_file] = str(package.system_file.relative_to(package.root))
    for path, name in named.items():
        try:
            open_bounded(path, WEIGHTS_CAP_BYTES).close()
        except (OSError, ValueError) as error:
            if (finding := unreadable(error, name)) is not None:
                yield finding


def absolute(path: Path) -> Path:
    """Return ``path`` as an absolute path without resolving links, whose names may name a round."""
    return path.resolve() if ".." in path.parts else path.absolute()


def package_at(folder: Path) -> Package | None:
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
