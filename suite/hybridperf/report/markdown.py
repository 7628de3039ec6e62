"""Write the leaderboard as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.evidence import evidence_of, reproduce_commands
from hybridperf.report.figures import (
    UNKNOWN,
    count,
    loader_sentence,
    ratio,
    seconds,
    seconds_range,
)
from hybridperf.report.scaling import efficiency_words, scaling_groups
from hybridperf.score.metrics import metrics_of
from hybridperf.score.scaling import SPEED_METRICS, metric_words, plan_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.report.board import Board, Row
    from hybridperf.report.judged import Entry
    from hybridperf.report.scaling import ScalingGroup

__all__ = ["escape_markdown", "leaderboard_markdown"]

_MARKS: Final = re.compile(r"[\\`*_{}\[\]()#!|~$@]|(?<=\bwww)\.|:(?=//)")
_TEXT: Final = frozenset(
    {"organisation", "system", "plan", "rung", "trainer"}
)  #: left-aligned columns
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NOTE: Final = (
    "Time to train is the mean without the fastest and the slowest run. Results that tie, by "
    "Welch's test at 5 %, may share places. ÷ first is the ratio of mean times over the runs that "
    "reached the target, relative to the first result; it is the product of samples ÷ and seconds "
    "per sample ÷. Everything else, every run included, stands in [index.html](index.html)."
)


def escape_markdown(text: str) -> str:
    """Escape ``text`` for Markdown and HTML."""
    return _MARKS.sub(r"\\\g<0>", visible(text)).translate(_ENTITIES)


def leaderboard_markdown(boards: Sequence[Board]) -> str:
    """Return one table per leaderboard, its invalid results and the commands to reproduce it."""
    lines = ["# HybridPerf leaderboard", ""]
    if not boards:
        lines += ["No results yet. Make one with `hybridperf run resnet/laptop --plan dp=2`.", ""]
    for board in boards:
        lines += _board(board)
    return "\n".join([*lines, _NOTE, ""])


def _board(board: Board) -> Iterator[str]:
    version = f"version {board.version}, " if board.version else ""
    yield f"## {escape_markdown(f'{board.benchmark}, {version}{board.division} division')}"
    yield ""
    if board.rows:
        cells = [_cells(row) for row in board.rows]
        yield _line(cells[0])
        yield _line(":--" if name in _TEXT else "--:" for name in cells[0])
        yield from (_line(row.values()) for row in cells)
        yield ""
        yield from _without_place(board)
    yield from _loaders(board)
    for group in scaling_groups(board):
        yield from _scaling(group)
    if board.invalid:
        yield "Invalid, and therefore not ranked:"
        yield ""
        yield from (f"- {_name(entry)}: {_errors(entry)}" for entry in board.invalid)
        yield ""
    commands = dict.fromkeys(
        command for row in board.rows for command in reproduce_commands(row.entry.result)
    )
    if commands:
        yield from ("To reproduce:", "", "```sh", *commands, "```", "")


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row by heading."""
    score, evidence = row.entry.score, evidence_of(row.entry)
    interval, why = score.interval_s, row.decision.why
    place = row.entry.official.place
    return {
        "place": str(place or row.entry.standing),
        "organisation": escape_markdown(score.org),
        "system": escape_markdown(score.system),
        "plan": escape_markdown(score.plan) or UNKNOWN,
        "ranks": count(plan_ranks(score.plan)),
        "time to train, s": seconds(score.olympic_mean_s),
        "95 % interval, s": seconds_range(interval.low, interval.high) if interval else UNKNOWN,
        "runs": f"{len(score.completed)} of {len(score.runs)}",
        "÷ first": ratio(row.decision.ratio),
        "samples ÷": ratio(why.samples_ratio if why else None),
        "seconds per sample ÷": ratio(why.seconds_per_sample_ratio if why else None),
        **{
            metric.heading: escape_markdown(metric.text(row.entry.official)) or UNKNOWN
            for metric in metrics_of("markdown")
        },
        "scored again": f"{evidence.rescored} of {evidence.completed}",
    }


def _without_place(board: Board) -> Iterator[str]:
    lines = [
        f"- {_name(row.entry)}, no place: {escape_markdown(row.entry.no_place)}"
        for row in board.rows
        if row.entry.official.place is None
    ]
    if lines:
        yield from (*lines, "")


def _loaders(board: Board) -> Iterator[str]:
    sentences = [(row.entry, loader_sentence(row.entry.score)) for row in board.rows]
    lines = [f"- {_name(entry)}: {each}" for entry, each in sentences if each]
    if lines:
        yield from (*lines, "")


def _scaling(group: ScalingGroup) -> Iterator[str]:
    start = escape_markdown(group.start)
    yield f"Scaling efficiency from {start}, {escape_markdown(group.kind)}, with 95 % intervals:"
    yield ""
    yield _line(["system", "devices", *map(metric_words, SPEED_METRICS), "above 100 % by"])
    yield _line([":--", "--:", *["--:"] * len(SPEED_METRICS), ":--"])
    for entry, scaled in group.results:
        shares = [efficiency_words(scaled.rated.get(metric)) for metric in SPEED_METRICS]
        system, devices = escape_markdown(entry.score.system), count(scaled.side.devices.used)
        yield _line([system, devices, *shares, ", ".join(scaled.causes) or UNKNOWN])
    yield ""


def _name(entry: Entry) -> str:
    return f"{escape_markdown(entry.score.org)}, {escape_markdown(entry.score.system)}"


def _errors(entry: Entry) -> str:
    more = f" (and {len(entry.errors) - 1} more)" if len(entry.errors) > 1 else ""
    return f"{escape_markdown(entry.errors[0].sentence)}{more}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
