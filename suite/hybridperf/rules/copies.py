"""Find runs that stand in more than one result: no two runs are alike to the millisecond."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding
from hybridperf.log import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridperf.log.package import Result

__all__ = ["COPIES", "Trace", "copied_runs", "traces_of"]

COPIES: Final = "result.copies"
_REMEDY: Final = "remove what was copied; every result is made of runs of its own"
_FEWEST_STAMPS: Final = 4
_SHORTEST_MS: Final = 1000  # of a run whose time stamps tell it from another


@dataclass(frozen=True, slots=True)
class Trace:
    """What tells a run from all others."""

    result: str  #: displayed path of the result's folder
    log: str  #: displayed path of the log
    signed: bool  #: its organisation has signed the result
    marks: tuple[tuple[str, object], ...]  #: (what, value), each unique to the run


def traces_of(result: Result, *, signed: bool) -> list[Trace]:
    """Return the trace of each run of ``result``."""
    traces = []
    for run in result.runs:
        marks: list[tuple[str, object]] = []
        if run.log.sha256:
            marks.append(("log", run.log.sha256))
        start, evaluations = run.log.first(keys.RUN_START), run.log.all(keys.EVAL_ACCURACY)
        if start is not None and len(evaluations) >= _FEWEST_STAMPS:
            times = tuple(entry.time_ms - start.time_ms for entry in evaluations)
            if times[-1] >= _SHORTEST_MS:
                marks.append(("time stamps", times))
        weights = run.fact("weights_sha256")
        if isinstance(weights, dict) and weights:
            marks.append(("final weights", tuple(sorted(map(str, weights.values())))))
        traces.append(Trace(result.package.name, run.log.path, signed, tuple(marks)))
    return traces


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
            yield Finding(COPIES, expected, f"those of {others[0].log}", _REMEDY, trace.log)
