"""Find runs that stand in more than one result: no two runs are alike to the millisecond."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridperf.log.package import Result, SealedRun

__all__ = ["COPIES", "Trace", "copied_runs", "marks_of", "traces_of"]

COPIES: Final = "result.copies"
_REMEDY: Final = "remove what was copied; every result is made of runs of its own"
# Of a run whose time stamps tell it from others: of a million pairs, fewer than one is equal.
_FEWEST_STAMPS: Final = 4
_SHORTEST_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """What tells a run from all others."""

    result: str  #: displayed path of the result's folder
    log: str  #: displayed path of the log
    signed: bool  #: its organisation has signed the result
    marks: tuple[tuple[str, object], ...]  #: (what, value), each unique to the run


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
    return [
        Trace(
            result.package.name,
            run.log.path,
            signed,
            (*((("a log", run.log.sha256),) if run.log.sha256 else ()), *marks_of(run)),
        )
        for run in result.runs
    ]


def copied_runs(traces: Iterable[Trace]) -> Iterator[Finding]:
    """Yield a finding for each run that another result has too.

    Of two results, the one that its organisation has signed is taken for the original.
    """
    by_mark: dict[tuple[str, object], list[Trace]] = defaultdict(list)
    for trace in traces:
        for mark in trace.marks:
            by_mark[mark].append(trace)
    found = set[str]()
    for (what, _), alike in by_mark.items():
        for trace in alike:
            others = [each for each in alike if each.result != trace.result]
            if not others or trace.log in found or (trace.signed and not others[0].signed):
                continue
            found.add(trace.log)
            expected = f"{what} that no run of another result has"
            yield Finding(COPIES, expected, f"that of {others[0].log}", _REMEDY, trace.log)
