"""Rules for all runs of one result of an MLPerf round together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.rounds import scaling_factor
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.copies",
    scope="result",
    source="MLPerf Training rules, Scoring: each submission is 'a set of N independent runs'",
    remedy="submit every run once",
)
def no_copies(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """No two runs start and stop at the same millisecond."""
    first_at: dict[tuple[int, int], int] = {}
    for run in result.runs:
        start, stop = run.log.first(keys.RUN_START), run.log.first(keys.RUN_STOP)
        if start is not None and stop is not None:
            other = first_at.setdefault((start.time_ms, stop.time_ms), run.number)
            if other != run.number:
                found = f"start and stop of run {other}"
                yield Deviation("a run of its own", found, start.line, run.number)


@rule(
    "mlperf.scaling_file",
    scope="result",
    source="MLPerf Training rules, RCPs: results that converge faster than the reference are "
    "normalized to it; MLPerf's package checker writes the factor to scaling.json",
    remedy="let MLPerf's package checker write scaling.json, or remove it",
)
def scaling_file_is_readable(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """A scaling.json beside the logs is a JSON object with a factor of at least 1."""
    try:
        scaling_factor(result.package)
    except (OSError, ValueError) as error:
        package = result.package
        place = package.name_of(package.folder / "scaling.json")
        yield Deviation("a scaling_factor of at least 1", reason(error), path=place)
