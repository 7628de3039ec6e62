"""Rules against runs that were made from other runs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark

_INDEPENDENT: Final = (
    "MLPerf Training rules, Scoring: each submission is 'a set of N independent runs'"
)
# Bounds on memory: results of ten rounds have up to 40 runs, of up to 319 evaluations.
_MOST_COMPARED: Final = 2000  #: evaluations of a run
_MOST_KEPT: Final = 100_000  #: parts of all runs of a result
_TRACKED: Final = "tracked statistics"  #: all of a run are equal by chance in none, however few


@rule(
    "mlperf.twins",
    scope="result",
    source=_INDEPENDENT,
    remedy="submit the runs as they were made, each with a seed of its own",
)
def runs_differ(
    result: Result,
    benchmark: Benchmark,
    *,
    least: Mapping[str, int],
    whole: Sequence[str],
) -> Iterator[Deviation]:
    """No two runs log the same in a row, as one that is put together from parts of others does.

    ``least`` is how many different values in a row are not equal by chance: qualities, times
    between evaluations, both, and what runs track, which a copy has though its times were changed.
    Of benchmarks in ``whole``, parts of runs may be equal.
    """
    seen: dict[tuple[object, ...], int] = {}
    for run in result.runs:
        evaluations = benchmark.evaluations(run.log)[:_MOST_COMPARED]
        tracked = run.log.all(keys.TRACKED_STATS)[:_MOST_COMPARED]
        times = [entry.time_ms for entry in evaluations]
        gaps = [after - before for before, after in pairwise(times)]
        values = [repr(entry.value)[:200] for entry in evaluations]
        rows: dict[str, Sequence[object]] = {
            "qualities": values,
            "times between evaluations": gaps,
            "qualities and times": list(zip(values[1:], gaps, strict=True)) if values else [],
            _TRACKED: [repr(entry.value)[:200] for entry in tracked],
        }
        for what, row in rows.items():
            fewest = 1 if what == _TRACKED else least["whole"]
            parts = list(_parts(row, least[what], fewest, whole=benchmark.name in whole))
            copied = next((part for part in parts if (what, *part) in seen), None)
            if copied is not None:
                found = f"{len(copied)} {what} in a row of run {seen[what, *copied]}"
                yield Deviation(f"{what} of its own", found, run=run.number)
                break
            if len(seen) < _MOST_KEPT:
                seen |= {(what, *part): run.number for part in parts}


def _parts(
    row: Sequence[object], least: int, least_whole: int, *, whole: bool
) -> Iterator[tuple[object, ...]]:
    """Yield what of ``row`` no other run has by chance: parts of it, or all of a shorter one.

    All values of a part differ, and ``least_whole`` of a whole.
    """
    whole = whole or len(row) < least
    size = len(row) if whole else least
    different = min(size, least_whole) if whole else size
    if size < min(least, least_whole):
        return
    for first in range(len(row) - size + 1):
        part = tuple(row[first : first + size])
        if len(set(part)) >= different:
            yield part
