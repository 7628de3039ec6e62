"""Find and read results of MLPerf's rounds as they were published, whatever else is in the logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs import keys
from suite.logs.package import Package, Result, SealedRun, read_result
from suite.logs.reader import Log, parse_entry
from suite.logs.strict_json import parse_object, read_bounded, reason
from suite.scores.rcp import Verdict

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find_scored", "published_factor", "read_scored"]

_GLOB: Final = "result_*.txt"  #: rounds have result_<n>.txt and result_<time>_<nn>.txt
_FILE_CAP: Final = 64 * 2**20
_LINE_CAP: Final = 64 * 2**10
_SYSTEM_CAP: Final = 2**20
_MOST: Final = 1e6  #: a larger factor was not measured
_TOKEN: Final = b":::MLLOG"
_WANTED: Final = (
    keys.SUBMISSION_BENCHMARK,
    keys.SUBMISSION_DIVISION,
    keys.INIT_START,
    keys.RUN_START,
    keys.RUN_STOP,
    keys.EVAL_ACCURACY,
    keys.TRAIN_SAMPLES,
    keys.GLOBAL_BATCH_SIZE,
    keys.SEED,
)
_MENTIONS: Final = re.compile(rb'"(?:' + "|".join(_WANTED).encode() + rb')"')


def find_scored(path: Path) -> list[Package]:
    """Return every result at or below ``path``, ours and MLPerf's, sorted by name.

    Where a folder holds several rounds, each round is a root of its own.
    """
    folders = {file.parent.resolve() for file in path.rglob(_GLOB) if ".attempt" not in str(file)}
    packages = []
    for folder in folders:
        match folder.parts:
            case (*_, _, org, "results", system, benchmark):
                packages.append(Package(folder.parents[3], org, system, benchmark))
    return sorted(packages, key=lambda each: (each.root, each.org, each.system, each.benchmark))


def read_scored(package: Package) -> Result:
    """Read a result: ours in full, one without manifests only as far as scores need it."""
    if next(package.folder.glob("result_*.json"), None) is not None:
        return read_result(package)
    paths = sorted(package.folder.glob(_GLOB), key=_natural)
    runs = tuple(
        SealedRun(number, _read_log(path, package.root), None) for number, path in enumerate(paths)
    )
    return Result(package, runs, _read_system(package.system_file), "", ())


def published_factor(result: Result) -> Verdict:
    """Return the factor that the round's own tools left in ``scaling.json``, or 1 without one."""
    path = result.package.folder / "scaling.json"
    try:
        factor = parse_object(read_bounded(path, _SYSTEM_CAP).decode()).get("scaling_factor")
    except FileNotFoundError:
        return Verdict(None, "published without scaling.json, so with 1", factor=1.0)
    except (OSError, ValueError) as error:
        return Verdict(None, f"scaling.json: {reason(error)}")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < _MOST:
        return Verdict(None, f"scaling.json: a factor of {factor!r:.40}")
    return Verdict(None, "as published in scaling.json", factor=float(factor))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort result_10 behind result_9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in _parts(path.name)]


def _parts(name: str) -> list[str]:
    return re.findall(r"[0-9]{1,40}|[^0-9]+", name)


def _read_log(path: Path, root: Path) -> Log:
    """Read the lines that scores need; like the official tools as latin-1, and after any junk."""
    log = Log(visible(str(path.relative_to(root))))
    try:
        content = read_bounded(path, _FILE_CAP)
    except (OSError, ValueError) as error:
        log.findings.append(_finding(log, None, reason(error)))
        return log
    for number, line in enumerate(content.split(b"\n"), start=1):
        _, found, payload = line.rpartition(_TOKEN)
        if found and len(payload) <= _LINE_CAP and _MENTIONS.search(payload):
            try:
                log.entries.append(parse_entry(payload.strip().decode("latin-1"), number))
            except ValueError as error:
                log.findings.append(_finding(log, number, str(error)))
    return log


def _read_system(path: Path) -> dict[str, object] | None:
    try:
        return parse_object(read_bounded(path, _SYSTEM_CAP).decode("utf-8-sig", errors="replace"))
    except (OSError, ValueError):
        return None


def _finding(log: Log, line: int | None, found: str) -> Finding:
    return Finding("log.line", "a line that can be read", found, "run again", log.path, line)
