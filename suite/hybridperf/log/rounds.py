"""Find and read results in the layout of MLPerf rounds, from this suite or any submitter."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding, Severity, unreadable
from hybridperf.log.log import Budget
from hybridperf.log.package import (
    Result,
    SealedRun,
    absolute,
    folders_of_logs,
    locked_files,
    package_at,
    read_result,
)
from hybridperf.log.published import read_published_log
from hybridperf.untrusted import (
    DOCUMENT_CAP_BYTES,
    RATIO_CAP,
    number,
    parse_object,
    read_bounded,
    read_object,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from hybridperf.log.package import Package

__all__ = [
    "ROUND",
    "edition_of",
    "find_packages",
    "has_manifests",
    "published_runs",
    "read_package",
    "scaling_factor",
]

#: folder name of a published round
ROUND: Final = re.compile(r"training_results_v([0-9]{1,3})\.([0-9]{1,3})")
_GLOB: Final = "result_*.txt"  #: rounds have result_<n>.txt and result_<time>_<nn>.txt
_LOG: Final = re.compile(r"result_.*\.txt", re.DOTALL)
_SCALING: Final = "scaling.json"


def find_packages(path: Path, barred: list[Finding] | None = None) -> list[Package]:
    """Return every result at or below ``path``, sorted by round, organisation and name.

    ``path`` may be a result's folder, one organisation's submission, a round, or a folder of
    rounds; each round is a separate root. ``barred`` is that of `folders_of_logs`.

    Raises:
        UserError: as `folders_of_logs`.
    """
    top = absolute(path)
    folders = folders_of_logs(path, _LOG, barred)
    packages = [
        replace(package, base=top if package.root.is_relative_to(top) else package.root)
        for package in map(package_at, folders)
        if package is not None
    ]
    return sorted(packages, key=lambda each: (each.root, each.org, each.system, each.benchmark))


def edition_of(package: Package) -> str:
    """Return the round of MLPerf, such as ``2.1``, that a result's root or a link to it names."""
    for root in (package.root, package.root.resolve()):
        if match := ROUND.fullmatch(root.name):
            return f"{int(match[1])}.{int(match[2])}"
    return ""


def read_package(package: Package, runs: Iterable[SealedRun] | None = None) -> Result:
    """Read a result: strictly if it has this suite's manifests, else as MLPerf's checker does.

    ``runs`` are those of one of MLPerf's, if they were read before.
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
