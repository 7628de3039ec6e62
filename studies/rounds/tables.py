"""Write projected and published throughput as a text table."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from hybridperf.report.tables import percent
from hybridperf.report.terminal import table_text, wrapped
from studies.rounds.errors import (
    submitter_halves,
    summarize,
    traits_of_worst,
    worst_decile,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from studies.rounds.errors import Summary
    from studies.rounds.project import Projected
    from studies.rounds.published import NotProjected

__all__ = ["round_projections_text"]

_HEADS: Final = (
    *("submitter", "round", "from", "devices", "published/s", "projected/s", "error", "system"),
)
_KEEP: Final = (9, 8, 9, 9, 9, 9, 9, 9)  #: priorities of the columns, as `Metric.keep`
_WIDE: Final = 120  #: least width with names of systems
_CLASSES: Final = ((1, 16), (17, 128), (129, 1024), (1025, None))  #: classes of numbers of devices
_SIGNED: Final = "+.1%"


def round_projections_text(
    projected: Sequence[Projected], left_out: Sequence[NotProjected], width: int
) -> str:
    """Return tables of at most ``width`` characters by benchmark and device.

    Followed by summaries of the errors, and traits of the outliers.
    """
    summaries = [
        (
            name,
            f"{summary.results}",
            percent(summary.median),
            percent(summary.ninth_decile),
            percent(summary.worst_decile_mean),
            format(summary.bias, _SIGNED),
        )
        for name, summary in _summaries(projected)
        if summary is not None
    ]
    heads = ("absolute error", "results", "median", "9 of 10", "worst tenth", "bias")
    notes = [*_outliers(projected), *_notes(left_out)]
    return "\n".join(
        [
            *(line for part in _groups(projected) for line in _table(part, width)),
            table_text(heads, summaries, width),
            "",
            *(line for note in notes for line in wrapped(note, width)),
        ]
    )


def _groups(projected: Sequence[Projected]) -> Iterator[list[Projected]]:
    for _, group in groupby(sorted(projected, key=_order), key=lambda each: _order(each)[:2]):
        yield list(group)


def _table(projected: Sequence[Projected], width: int) -> Iterator[str]:
    one = projected[0].result
    yield from wrapped(f"{one.benchmark}, {one.device}", width)
    rows = [
        (
            each.result.submitter,
            each.result.edition,
            f"{each.base.devices}",
            f"{each.result.devices}",
            f"{each.result.samples_per_s:,.0f}",
            f"{each.samples_per_s:,.0f}",
            format(each.error, _SIGNED),
            each.result.system,
        )
        for each in projected
    ]
    columns = len(_HEADS) - (width < _WIDE)
    cut = [row[:columns] for row in rows]
    yield table_text(_HEADS[:columns], cut, width, _KEEP[:columns])
    yield ""


def _summaries(projected: Sequence[Projected]) -> Iterator[tuple[str, Summary | None]]:
    yield "all", summarize(projected)
    for benchmark in sorted({each.result.benchmark for each in projected}):
        part = [each for each in projected if each.result.benchmark == benchmark]
        yield benchmark, summarize(part)
    for low, high in _CLASSES:
        part = [
            each
            for each in projected
            if low <= each.result.devices and (high is None or each.result.devices <= high)
        ]
        name = f"{low} to {high} devices" if high else f"{low} devices or more"
        yield name, summarize(part)
    for name, part in zip(("first", "second"), submitter_halves(projected), strict=True):
        yield f"submitters, {name} half", summarize(part)


def _outliers(projected: Sequence[Projected]) -> Iterator[str]:
    worst = worst_decile(projected) if projected else []
    for each in worst[:5]:
        yield (
            f"far off: {each.result.submitter} {each.result.system}, {each.result.benchmark} of "
            f"v{each.result.edition}, {each.error:+.0%}"
        )
    traits = [
        f"{trait.words} ({trait.of_worst:.0%}, {trait.of_others:.0%} of the rest)"
        for trait in traits_of_worst(projected)
    ]
    if traits:
        yield f"traits of the worst tenth: {'; '.join(traits)}"


def _notes(left_out: Sequence[NotProjected]) -> Iterator[str]:
    yield (
        "throughput: steady, from the first evaluation to the last; projected from the smallest "
        "system of the same submitter, device and round (column from: its devices)"
    )
    for why, count in Counter(each.why for each in left_out).most_common():
        yield f"not projected: {count} result{'s' * (count > 1)}, {why}"


def _order(each: Projected) -> tuple[str, str, str, int, str]:
    one = each.result
    return one.benchmark, one.device, one.submitter, one.devices, one.edition
