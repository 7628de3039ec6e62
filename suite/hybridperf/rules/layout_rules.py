"""Rules of a submission's layout: which files belong where, and which are required."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.rules.package_rules import ARCHIVE, LEFT_BEHIND
from hybridperf.rules.rule import Deviation, first_of, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.submission import Item, Submission

_LAYOUT: Final = "MLPerf submission rules, 'Directory structure', Training"
_CONTENT: Final = "MLPerf submission rules, 'Submission content'"
_LOG: Final = re.compile(r"result_.*\.txt")
_NUMBERED: Final = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
_SCRIPTS: Final = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")


@rule(
    "package.stray",
    scope="submission",
    source=f"{_LAYOUT}: the structure must be followed",
    remedy="remove it, or use the name and place that the layout defines",
    severity=Severity.WARNING,
)
def nothing_stray(
    submission: Submission, *, top: Sequence[str], in_result: Sequence[str]
) -> Iterator[Deviation]:
    """Every file has a place in the layout."""
    known = [re.compile(pattern) for pattern in in_result]
    for item in submission.items:
        is_code = item.parts[0] == "benchmarks" and "benchmarks" in top
        judged = item.kind in {"file", "folder"} and not is_code
        words = _stray(item, top, known) if judged else None
        if words is not None:
            # Logs with other names are not read.
            of_result = item.parts[0] == "results" and len(item.parts) == 4
            unread = of_result and item.name.lower().startswith("result")
            severity = Severity.ERROR if unread and not LEFT_BEHIND.fullmatch(item.name) else None
            yield Deviation(*words, path=submission.place(*item.parts), severity=severity)
    for item in submission.unsealed:
        expected, found = "finished attempts", "one that was started and not finished"
        yield Deviation(expected, found, path=submission.place(*item.parts))


@rule(
    "package.logs",
    scope="submission",
    source=f"{_LAYOUT}: results/<system>/<benchmark>/result_<i>.txt",
    remedy="put the logs there, or remove the folder",
    severity=Severity.WARNING,
)
def folders_hold_logs(submission: Submission) -> Iterator[Deviation]:
    """Every result's folder holds logs."""
    logs = {item.parts[:3] for item in submission.items if _LOG.fullmatch(item.name)}
    begun = {item.parts[:3] for item in submission.unsealed}
    for item in submission.items:
        is_result = item.kind == "folder" and item.parts[0] == "results" and len(item.parts) == 3
        if is_result and item.parts not in logs | begun:
            yield Deviation("result_<n>.txt in it", "none", path=submission.place(*item.parts))


@rule(
    "package.numbers",
    scope="submission",
    source=f"{_LAYOUT}: result_<i>.txt",
    remedy="number the logs without a gap, and include every run",
    severity=Severity.WARNING,
)
def logs_numbered(submission: Submission) -> Iterator[Deviation]:
    """Logs are numbered from 0 or 1 without a gap, where they are numbered."""
    numbers: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for item in submission.items:
        if item.parts[0] == "results" and (match := _NUMBERED.fullmatch(item.name)):
            numbers[item.parts[:-1]].add(int(match[1]))
    for folder, present in numbers.items():
        missing = next(number for number in range(1, max(present) + 2) if number not in present)
        if missing < max(present):
            expected = f"result_{missing}.txt, as there is result_{max(present)}.txt"
            yield Deviation(expected, "none", path=submission.place(*folder))


@rule(
    "package.described",
    scope="submission",
    source=f"{_CONTENT}: metadata for the systems under test",
    remedy="describe the system, or rename the description to match the results' folder",
)
def results_described(submission: Submission) -> Iterator[Deviation]:
    """Every system with results has a description."""
    for system in sorted({each.system for each in submission.packages}):
        if not submission.tree.has("systems", f"{system}.json"):
            place = submission.place("results", system)
            yield Deviation(f"{system}.json in systems/", "none", path=place)


@rule(
    "package.unused",
    scope="submission",
    source=f"{_CONTENT}: result logs for each system-implementation tested",
    remedy="add its results, or remove the description",
    severity=Severity.WARNING,
)
def descriptions_used(submission: Submission) -> Iterator[Deviation]:
    """Every system that is described has results."""
    described = [
        item.name.removesuffix(".json")
        for item in submission.tree.files("systems")
        if item.name.endswith(".json")
    ]
    with_results = {item.parts[1] for item in submission.tree.files("results") if item.parts[2:]}
    if unused := [name for name in described if name not in with_results]:
        yield Deviation(
            "results of every system in systems/",
            f"none of {first_of(unused)}",
            path=submission.place("systems"),
        )


@rule(
    "package.code",
    scope="submission",
    source=f"{_CONTENT}: code that implements the benchmarks, and scripts that execute it",
    remedy="add the code and the scripts of this benchmark and system",
)
def code_present(submission: Submission) -> Iterator[Deviation]:
    """The code of every benchmark and the scripts of every system are present."""
    tree, place = submission.tree, submission.place("benchmarks")
    if not tree.files("benchmarks"):
        # Excerpts of a round lack the code, which does not invalidate their logs.
        expected = "benchmarks/ with the code of every result"
        yield Deviation(expected, "none", path=place, severity=Severity.WARNING)
        return
    for benchmark in sorted({each.benchmark for each in submission.packages}):
        if not tree.files("benchmarks", benchmark, "implementations"):
            expected = f"code in {benchmark}/implementations/"
            yield Deviation(expected, "none", path=place)
    lacking = []
    for each in submission.packages:
        files = {item.name for item in tree.files("benchmarks", each.benchmark, each.system)}
        described = any(name.startswith(f"{each.system}_") for name in files)
        if not described or not files.issuperset(_SCRIPTS):
            lacking.append(f"{each.benchmark}/{each.system}")
    if lacking:
        # Accepted submissions may keep scripts in the code folder instead.
        expected = f"<system>_<implementation>.json, {', '.join(_SCRIPTS)} for every system"
        found = f"not all in {first_of(lacking)}"
        yield Deviation(expected, found, path=place, severity=Severity.WARNING)


def _stray(
    item: Item, top: Sequence[str], in_result: Sequence[re.Pattern[str]]
) -> tuple[str, str] | None:
    """Return (expected, found) if ``item`` does not belong to the layout, else None."""
    area, name, depth = item.parts[0], item.name, len(item.parts)
    if LEFT_BEHIND.fullmatch(name):
        return "only what the layout names", "a file that an editor left behind"
    if name.startswith(".") or ARCHIVE.fullmatch(name):
        return None  # reported by other rules
    if depth == 1:
        return None if name in top else (f"{', '.join(top)} alone", f"{name!r:.80}")
    if area == "systems" and (depth > 2 or item.kind == "folder" or not name.endswith(".json")):
        return "<system>.json only in systems/", f"{name!r:.80}"
    if area == "results" and item.kind == "file" and depth < 4:
        return "folders <system>/<benchmark>/ in results/", "a file"
    if area == "results" and depth == 4:
        if any(pattern.fullmatch(name) for pattern in in_result):
            return None
        return "result_<n>.txt, n without leading zeros, in a result's folder", f"{name!r:.80}"
    return None
