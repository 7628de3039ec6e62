"""Find and read results in MLPerf's layout.

``<org>/systems/<system>.json`` and ``<org>/results/<system>/<benchmark>/result_<n>.txt``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs.log import Budget
from suite.logs.reader import read_log
from suite.logs.strict_json import parse_object, read_bounded, reason
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.logs.log import Log

__all__ = [
    "LOGS_CAP",
    "NAME",
    "PUT_BACK",
    "TASK_FILE",
    "Package",
    "Result",
    "SealedRun",
    "find_results",
    "folders_of_logs",
    "package_at",
    "read_result",
    "result_names",
]

_RESULT: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  #: of organisations and systems
TASK_FILE: Final = "task.toml"  #: beside the logs of a task that is none of the suite's
LOGS_CAP: Final = 10_000  #: that are looked at together; round v2.1 has 1,910
_CAP_BYTES: Final = 2**20
PUT_BACK: Final = "put back what the harness wrote"  #: the remedy of what was sealed


@dataclass(frozen=True, slots=True)
class Package:
    """Say where the result of a ``benchmark`` on a ``system`` of an ``org`` stands."""

    root: Path
    org: str
    system: str
    benchmark: str
    base: Path | None = field(default=None, compare=False)  #: where names begin, if above the root

    @property
    def folder(self) -> Path:
        """Return the folder of the result files."""
        return self.root / self.org / "results" / self.system / self.benchmark

    @property
    def system_file(self) -> Path:
        """Return the file that describes the system."""
        return self.root / self.org / "systems" / f"{self.system}.json"

    @property
    def task_file(self) -> Path:
        """Return the file of the result's task, which is there if it is none of the suite's."""
        return self.folder / TASK_FILE

    def name_of(self, path: Path) -> str:
        """Return the name of a file of the submission, safe to show."""
        return visible(path.relative_to(self.base or self.root).as_posix())

    @property
    def name(self) -> str:
        """Return the name of the result's folder, safe to show."""
        return self.name_of(self.folder)


@dataclass(frozen=True, slots=True)
class SealedRun:
    """One attempt as it was sealed: its log and its manifest."""

    number: int
    log: Log
    manifest: dict[str, object] | None  #: None where the run came with none, as MLPerf's do

    def fact(self, *keys: str) -> object:
        """Return the manifest's value at nested ``keys``, or None where there is none."""
        value: object = self.manifest
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True, slots=True)
class Result:
    """All attempts at one benchmark on one system, and what could not be read of them."""

    package: Package
    runs: tuple[SealedRun, ...]
    system: dict[str, object] | None
    system_sha256: str
    findings: tuple[Finding, ...]


def result_names(number: int) -> tuple[str, str]:
    """Return the names of an attempt's log and manifest."""
    return f"result_{number}.txt", f"result_{number}.json"


def find_results(path: Path) -> list[Package]:
    """Return every result at or below ``path``, sorted by organisation, system and benchmark.

    ``path`` may be a result's folder, one organisation's submission, or a folder of those.

    Raises:
        Refusal: exit status 4 where there are more logs than are looked at together.
    """
    found = (package_at(folder) for folder in sorted(folders_of_logs(path, _RESULT)))
    packages = [package for package in found if package is not None]
    return sorted(packages, key=lambda each: (each.org, each.system, each.benchmark))


def folders_of_logs(path: Path, name: re.Pattern[str]) -> set[Path]:
    """Return the folders, at or below ``path``, of logs whose file is called ``name``.

    Raises:
        Refusal: exit status 4 where there are more logs than are looked at together.
    """
    logs = 0
    folders: set[Path] = set()
    for file in path.rglob("result_*.txt"):
        if name.fullmatch(file.name) and ".attempt" not in str(file):
            logs += 1
            folders.add(file.parent)
            if logs > LOGS_CAP:
                expected, found = f"at most {LOGS_CAP} logs below one folder", "more"
                remedy = "name a part of it, such as the folder of one organisation"
                finding = Finding("check.path", expected, found, remedy, path=str(path))
                raise Refusal(finding, ExitCode.ENVIRONMENT)
    return {folder.resolve() for folder in folders}


def package_at(folder: Path) -> Package | None:
    """Return the result that stands in ``folder``, or None where its place is that of none."""
    match folder.parts:
        case (*_, _, org, "results", system, benchmark):
            return Package(folder.parents[3], org, system, benchmark)
    return None


def read_result(package: Package) -> Result:
    """Read every attempt of a result; never raises for what the files contain."""
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
    """Yield what is wrong with the names of the folders."""
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
    return SealedRun(number, log, _read_object(manifest, package.root, "result.manifest", findings))


def _read_object(
    path: Path, root: Path, rule: str, findings: list[Finding]
) -> dict[str, object] | None:
    try:
        return parse_object(read_bounded(path, _CAP_BYTES).decode())
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
