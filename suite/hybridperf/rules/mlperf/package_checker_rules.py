"""Rules of MLPerf's package checker besides those of single logs: files, seeds, convergence, power.

Mode ``package`` is the verdict of the round's package checker: of its log checker, and of these.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, first_of, rule
from hybridperf.score.rcp import convergence_by_tool
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, parse_object, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result
    from hybridperf.log.submission import Submission
    from hybridperf.rules.mlperf.ruleset import Benchmark, Ruleset
    from hybridperf.score.rcp import RcpSets

__all__ = ["Submitted"]

_CHECKER: Final = "MLPerf's package checker of the round"
_BYPASSES: Final = "package_checker_params"  #: of a result or system: what the submitter bypasses
_MOST_CHARACTERS: Final = 4096  #: of such a file
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Submitted:
    """A result, and the reference convergence points that it is tested against, if known."""

    result: Result
    references: RcpSets | None

    @property
    def is_closed(self) -> bool:
        """Tell whether the system's description enters the result into the closed division."""
        return (self.result.system or {}).get("division") == "closed"

    def bypasses(self, what: str) -> bool:
        """Tell whether the submitter asks the checker to accept what fails the test ``what``.

        Like the checker, take a line only if nothing follows it, not even the end of the line.
        """
        folder = self.result.package.folder
        return any(what in _lines(each / _BYPASSES) for each in (folder, folder.parent))


def _lines(path: Path) -> list[str]:
    try:
        return read_bounded(path, _MOST_CHARACTERS).decode(errors="replace").splitlines(True)
    except (OSError, ValueError):
        return []


@rule(
    "checker.files",
    scope="package.result",
    source=f"{_CHECKER}: the number of result files",
    remedy="submit exactly as many runs as the benchmark asks for",
)
def file_count(submitted: Submitted, benchmark: Benchmark) -> Iterator[Deviation]:
    """There are exactly as many files result_*.txt as the benchmark asks for."""
    count, asked = len(submitted.result.runs), benchmark.runs
    if asked is not None and count != asked:
        yield Deviation(f"exactly {asked} files result_*.txt", str(count))


@rule(
    "checker.seeds",
    scope="package.result",
    source=f"{_CHECKER}: the seed checker",
    remedy="log the seed of every run as a whole number, and draw a new one for each",
)
def seeds_differ(
    submitted: Submitted, benchmark: Benchmark, *, needed: bool
) -> Iterator[Deviation]:
    """Closed runs log whole seeds, and no seed is logged twice from one line of code.

    ``needed``: every run logs one; else only those after a run that does.
    """
    if not submitted.is_closed or submitted.bypasses("seed-checker-bypass"):
        return
    seen: dict[tuple[object, object, int], str] = {}
    logged = needed
    for log in sorted((run.log for run in submitted.result.runs), key=lambda log: log.path):
        name = log.path.rpartition("/")[2]
        try:
            seeds = _seeds(log)
        except ValueError as error:
            yield Deviation(f"seeds of {name} that can be read", str(error))
            continue
        if logged and not seeds:
            yield Deviation(f"a seed in {name}", "none")
        logged = logged or bool(seeds)
        for seed in seeds:
            if seed in seen:
                file, line, value = seed
                found = f"{value}, logged from {file!r:.60}:{line!r:.20} in {seen[seed]} too"
                yield Deviation(f"a seed of its own in {name}", found)
            seen.setdefault(seed, name)


def _seeds(log: Log) -> list[tuple[object, object, int]]:
    """Return file, line of code and value of each seed.

    Raises:
        ValueError: if a line of the log cannot be read, or a seed is no number.
    """
    if wrong := next((each for each in log.findings if each.severity is Severity.ERROR), None):
        raise ValueError(wrong.found)
    found = []
    for entry in log.all(keys.SEED):
        where = [entry.metadata.get(name) for name in ("file", "lineno")]
        if not {"file", "lineno"} <= set(entry.metadata) or any(
            isinstance(each, dict | list) for each in where
        ):
            raise ValueError(f"a seed in line {entry.line} without file and lineno")
        try:
            found.append((*where, int(entry.value)))  # type: ignore[call-overload]  # what is no number raises
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{entry.value!r:.40} in line {entry.line}") from error
    return found


@rule(
    "checker.convergence",
    scope="package.result",
    source=f"{_CHECKER}: the RCP checker",
    remedy="converge no faster than the reference allows, or submit a reference point",
)
def converged_like_the_reference(
    submitted: Submitted, benchmark: Benchmark, *, untested: Sequence[str]
) -> Iterator[Deviation]:
    """Closed runs pass the round's test against reference convergence points, where they are given.

    BERT counts by train_samples where its epoch_num stands still.
    """
    if submitted.references is None or not submitted.is_closed or benchmark.name in untested:
        return
    logs = sorted((run.log for run in submitted.result.runs), key=lambda log: log.path)
    verdict = convergence_by_tool(logs, benchmark.name, benchmark.edition, submitted.references)
    if verdict.passed:
        return
    found = verdict.how
    if verdict.limit is not None:
        found = f"{verdict.mean:.6g} in the olympic mean ({verdict.how})"
    lowest = "" if verdict.limit is None else f" in {verdict.limit:.6g} epochs or samples or more"
    bypassed = verdict.mean is not None and submitted.bypasses("rcp-bypass")
    severity = Severity.WARNING if bypassed else None
    yield Deviation(f"convergence{lowest}, as the reference", found, severity=severity)


@rule(
    "checker.power",
    scope="package.result",
    source=f"{_CHECKER}: the power checker",
    remedy="measure the power of all nodes and switches in every run, as node_<n> and sw_<n>",
)
def power_is_complete(submitted: Submitted, benchmark: Benchmark) -> Iterator[Deviation]:
    """Where power was measured, it was in every run, of as many nodes and switches."""
    package = submitted.result.package
    folder = package.folder / "power"
    if not folder.is_dir():
        return
    runs = sorted(submitted.result.runs, key=lambda run: run.log.path)
    counts: list[tuple[int, int]] = []
    for run in runs:
        name = run.log.path.rpartition("/")[2].removesuffix(".txt")
        files = _files_in(folder / name)
        if files is None:
            yield Deviation(f"power/{name}", "none", run=run.number)
            continue
        kinds = [[each for each in files if each.startswith(kind)] for kind in ("node", "sw")]
        for kind, named in zip(("node", "sw"), kinds, strict=True):
            if sorted(map(_index, named)) != list(range(len(named))):
                expected = f"power/{name}/{kind}_<n> from {kind}_0 on"
                yield Deviation(expected, f"{', '.join(sorted(named)):.80}", run=run.number)
        counts.append((len(kinds[0]), len(kinds[1])))
    for place, kind in enumerate(("nodes", "switches")):
        usual = Counter(each[place] for each in counts).most_common(1)
        for run, each in zip(runs, counts, strict=False):
            if each[place] != usual[0][0]:
                expected = f"power of {usual[0][0]} {kind}, as in other runs"
                yield Deviation(expected, str(each[place]), run=run.number)


def _files_in(folder: Path) -> list[str] | None:
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return None


def _index(name: str) -> int:
    """Return the number at the end of a file's name; -1 if it ends with none."""
    stated = name.rpartition("/")[2].partition(".")[0].rpartition("_")[2]
    return int(stated) if _INDEX.fullmatch(stated) else -1


@rule(
    "checker.descriptions",
    scope="package.submission",
    source=f"{_CHECKER}: the system description checker",
    remedy="state every field, in the words of the submission rules",
)
def descriptions_are_complete(
    submission: Submission, ruleset: Ruleset, *, texts: Sequence[str], status: Sequence[str]
) -> Iterator[Deviation]:
    """Descriptions have all fields, text in some of them, and one of these ``status``, if any."""
    fields = ruleset.rules["system.fields"]["fields"]
    for name in sorted({f"{each.system}.json" for each in submission.packages}):
        if not submission.tree.has("systems", name):
            place = submission.place("systems", name)
            yield Deviation("a description of the system", "none", path=place)
    for item in submission.items:
        if item.parts[0] != "systems" or len(item.parts) != 2 or not item.name.endswith(".json"):
            continue
        place = submission.place(*item.parts)
        try:
            content = read_bounded(submission.folder.joinpath(*item.parts), DOCUMENT_CAP_BYTES)
            system = parse_object(content.decode(), last_of_keys=True)
        except (OSError, ValueError) as error:
            yield Deviation("one JSON object", reason(error), path=place)
            continue
        yield from _judged(system, fields, texts, status, place)


def _judged(
    system: dict[str, object],
    fields: Sequence[str],
    texts: Sequence[str],
    status: Sequence[str],
    place: str,
) -> Iterator[Deviation]:
    if missing := [field for field in fields if field not in system]:
        yield Deviation(f"all {len(fields)} fields", f"none of {first_of(missing)}", path=place)
    for field in texts:
        if not isinstance(system.get(field, ""), str):
            yield Deviation(f"{field} as text", f"{system[field]!r:.40}", path=place)
    stated = system.get("status")
    if status and "status" in system and stated not in status:
        yield Deviation(f"a status of {', '.join(status)}", f"{stated!r:.60}", path=place)
