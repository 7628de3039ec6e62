"""Find runs that stand in more than one result: no two runs are alike to the millisecond."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.rules.rule import READING
from hybridperf.rules.verdict import COPIES, DISPUTED
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridperf.log.package import Package, Result, SealedRun

__all__ = ["Trace", "copied_runs", "marks_of", "traces_of"]

# Of a run whose time stamps tell it from others: of a million pairs, fewer than one is equal.
_FEWEST_STAMPS: Final = 4
_SHORTEST_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """What tells a run from all others."""

    package: Package
    log: str  #: displayed path of the log
    right: tuple[bool, bool]  #: it lies where the log says, and its organisation has signed it
    marks: tuple[tuple[str, bytes], ...]  #: (what, digest of its value), each unique to the run


def marks_of(run: SealedRun) -> Iterator[tuple[str, object]]:
    """Yield (what, value) of everything that no two independent runs have in common."""
    measured = number(run.fact("supervisor", "run_s"))
    if measured is not None and measured != round(measured, 3):
        yield "a time by the supervisor's clock", measured
    start, evaluations = run.log.first(keys.RUN_START), run.log.all(keys.EVAL_ACCURACY)
    if start is not None and len(evaluations) >= _FEWEST_STAMPS:
        times = tuple(entry.time_ms - start.time_ms for entry in evaluations)
        if times[-1] >= _SHORTEST_MS:
            yield "times of its evaluations", times
    weights, ended = run.fact("weights_sha256"), run.log.first(keys.ENDING) is not None
    # A model of the open division may not depend on the seed.
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    if closed and not ended and isinstance(weights, dict) and weights:
        yield "final weights", tuple(sorted(map(str, weights.values())))


def traces_of(result: Result, *, signed: bool) -> list[Trace]:
    """Return the trace of each run of ``result``."""
    package, traces = result.package, []
    for run in result.runs:
        marks = [("a log", run.log.sha256)] if run.log.sha256 else []
        named = run.log.value(keys.SUBMISSION_ORG), run.log.value(keys.SUBMISSION_PLATFORM)
        traces.append(
            Trace(
                package,
                run.log.path,
                (named == (package.org, package.system), signed),
                tuple((what, _digest(value)) for what, value in (*marks, *marks_of(run))),
            )
        )
    return traces


def _digest(value: object) -> bytes:
    """Return a digest of a mark: the marks of all runs are kept until all results are read."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def copied_runs(traces: Iterable[Trace]) -> Iterator[tuple[Package, Finding]]:
    """Yield the results whose runs stand in others too, with findings.

    The result that lies in the folder which its logs name is the original, and of several such ones
    the one that its organisation has signed. The others are copies. Originals of equal right are
    disputed: the finding is of the whole result.
    """
    by_mark: dict[tuple[str, bytes], list[Trace]] = defaultdict(list)
    for trace in traces:
        for mark in trace.marks:
            by_mark[mark].append(trace)
    found: set[tuple[Package, str]] = set()
    for (what, _), alike in by_mark.items():
        if len({trace.package for trace in alike}) == 1:
            continue
        best = max(trace.right for trace in alike)
        originals = {trace.package for trace in alike if trace.right == best and best[0]}
        first = max(alike, key=lambda trace: trace.right)
        others = [trace for trace in alike if trace.package != first.package]
        second = max(others, key=lambda trace: trace.right)
        for trace in alike:
            rule, place = COPIES, trace.log
            if trace.package in originals:
                if len(originals) == 1:
                    continue
                rule, place = DISPUTED, trace.package.name
            if (trace.package, place) in found:
                continue
            found.add((trace.package, place))
            other = second if trace.package == first.package else first
            expected, copied = f"{what} that no run of another result has", f"that of {other.log}"
            yield trace.package, Finding(rule, expected, copied, READING[rule].remedy, place)
