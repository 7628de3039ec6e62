"""Find and read results in MLPerf's layout.

``<org>/systems/<system>.json`` and ``<org>/results/<system>/<benchmark>/result_<n>.txt``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.log.log import Budget
from hybridperf.log.reader import read_log
from hybridperf.untrusted import read_object, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Log

__all__ = [
    "LOGS_CAP",
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
    "only_result",
    "package_at",
    "predictions_name",
    "read_result",
    "result_names",
]

_RESULT: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  #: of organisations and systems
TASK_FILE: Final = "task.toml"  #: next to the logs of a user-defined task
LOGS_CAP: Final = 50_000  #: logs below one folder; ten rounds have 16,000
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


def find_results(path: Path) -> list[Package]:
    """Return every result at or below ``path``, sorted by organisation, system and benchmark.

    ``path`` may be a result's folder, one organisation's submission, or a folder of those.

    Raises:
        UserError: exit status 2 if there are more than `LOGS_CAP` logs.
    """
    found = (package_at(folder) for folder in sorted(folders_of_logs(path, _RESULT)))
    packages = [package for package in found if package is not None]
    return sorted(packages, key=lambda each: (each.org, each.system, each.benchmark))


def folders_of_logs(path: Path, name: re.Pattern[str]) -> set[Path]:
    """Return the folders at or below ``path`` with logs whose file name matches ``name``.

    Raises:
        OSError: if the folder ``path`` may not be read.
        UserError: exit status 2 if there are more than `LOGS_CAP` logs.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(path).close()  # Python 3.13 passes over a folder that it may not read
    logs = 0
    folders: set[Path] = set()
    for file in _files_below(path):
        if name.fullmatch(file.name) and ".attempt" not in str(file):
            logs += 1
            folders.add(file.parent)
            if logs > LOGS_CAP:
                expected, found = f"at most {LOGS_CAP} logs below one folder", "more"
                remedy = "name a part of it, such as the folder of one organisation"
                finding = Finding("check.path", expected, found, remedy, path=str(path))
                raise UserError(finding, ExitCode.USAGE)
    return {absolute(folder) for folder in folders}


def _files_below(path: Path) -> Iterator[Path]:
    """Yield the files below ``path``, however deep, but for those in folders that cannot be read.

    Links to folders are not followed.
    """
    left = [path]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
                else:
                    yield Path(entry.path)


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
    findings = list(_named(package))
    numbers = sorted(
        int(match[1])
        for path in package.folder.iterdir()
        if (match := _RESULT.fullmatch(path.name)) is not None
    )
    budget = Budget()
    runs = tuple(_read_run(package, number, findings, budget) for number in numbers)
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
        place = visible(str(path.relative_to(root)))
        findings.append(
            Finding(rule, "a JSON file that can be read", reason(error), PUT_BACK, path=place)
        )
        return None


def _at(finding: Finding, path: str) -> Finding:
    return dataclasses.replace(finding, path=path)
