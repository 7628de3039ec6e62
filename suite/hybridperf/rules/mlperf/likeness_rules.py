"""Rules against runs that were made from other runs, and names that are more than names."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark

_INDEPENDENT: Final = (
    "MLPerf Training rules, Scoring: each submission is 'a set of N independent runs'"
)
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  #: Unicode categories


@rule(
    "mlperf.twins",
    scope="mlperf.result",
    source=_INDEPENDENT,
    remedy="submit the runs as they were made, each with a seed of its own",
)
def runs_differ(result: Result, benchmark: Benchmark, *, least: int) -> Iterator[Deviation]:
    """No two runs log the same qualities, or the same times between evaluations, throughout.

    Sequences of fewer than ``least`` may be equal by chance.
    """
    qualities: dict[tuple[object, ...], int] = {}
    durations: dict[tuple[object, ...], int] = {}
    for run in result.runs:
        evaluations = benchmark.evaluations(run.log)
        times = [entry.time_ms for entry in evaluations]
        gaps = tuple(after - before for before, after in pairwise(times))
        values = tuple(repr(entry.value)[:200] for entry in evaluations)
        same = (
            (qualities, values, "qualities", len(set(values))),
            (durations, gaps, "times between evaluations", len(set(gaps))),
        )
        for seen, sequence, what, different in same:
            if len(sequence) < least or different < least:
                continue
            other = seen.setdefault(sequence, run.number)
            if other != run.number:
                found = f"the {len(sequence)} {what} of run {other}"
                yield Deviation(f"{what} of its own", found, evaluations[-1].line, run.number)


@rule(
    "mlperf.names",
    scope="mlperf.log",
    source="MLPerf submission rules, <system_desc_id>.json metadata: submitter and system_name are "
    "names; they are printed in tables, pages and spreadsheets",
    remedy="log plain names",
)
def names_are_plain(
    log: Log, benchmark: Benchmark, *, most_characters: int, formulas: str, markup: str
) -> Iterator[Deviation]:
    """Organisation and platform are printable text, without markup, and begin no formula."""
    for key in (keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM):
        for entry in log.all(key):
            text = entry.value
            plain = (
                isinstance(text, str)
                and len(text) <= most_characters
                and not text.startswith(tuple(formulas))
                and not set(text) & set(markup)
                and not any(unicodedata.category(char) in _INVISIBLE for char in text)
            )
            if not plain:
                expected = f"{key} of at most {most_characters} printable characters"
                yield Deviation(expected, f"{text!r:.80}", entry.line)
                break
