"""The leaderboard as Markdown that GitHub shows as it stands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from suite.findings import visible
from suite.report.commands import reproduce_commands
from suite.report.evidence import evidence_of
from suite.report.figures import UNKNOWN, count, ratio, seconds, seconds_range
from suite.report.loader import loader_sentence
from suite.report.plan_chips import plan_ranks
from suite.report.scaling_claims import claimed_share, figure_by, scaling_groups
from suite.scores.scaling import METRICS, metric_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from suite.report.board import Board, Row
    from suite.report.entry import Entry
    from suite.report.scaling_claims import ScalingGroup

__all__ = ["escape_markdown", "leaderboard_markdown"]

_MARKS: Final = re.compile(r"[\\`*_{}\[\]()#!|~$@]|(?<=\bwww)\.|:(?=//)")
_ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NOTE: Final = (
    "Time to train is the mean without the fastest and the slowest run. Results whose intervals "
    "overlap share ranks. ÷ fastest is the product of samples ÷ and seconds per sample ÷, all "
    "relative to the fastest result. Everything else, every run included, stands in "
    "[index.html](index.html)."
)
_HEADER: Final = {
    "rank": "--:",
    "organisation": ":--",
    "system": ":--",
    "plan": ":--",
    "ranks": "--:",
    "time to train, s": "--:",
    "95 % interval, s": "--:",
    "runs": "--:",
    "÷ fastest": "--:",
    "samples ÷": "--:",
    "seconds per sample ÷": "--:",
    "scored again": "--:",
}


def escape_markdown(text: str) -> str:
    """Return ``text`` such that Markdown and HTML show it and do nothing else with it."""
    return _MARKS.sub(r"\\\g<0>", visible(text)).translate(_ENTITIES)


def leaderboard_markdown(boards: Sequence[Board]) -> str:
    """Return one table a board, its invalid results, and the commands to reproduce them."""
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
        yield _line(_HEADER)
        yield _line(_HEADER.values())
        yield from (_line(_cells(row)) for row in board.rows)
        yield ""
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


def _cells(row: Row) -> list[str]:
    score, evidence = row.entry.score, evidence_of(row.entry)
    interval = score.interval_s
    return [
        str(row.rank or row.entry.standing),
        escape_markdown(score.org),
        escape_markdown(score.system),
        escape_markdown(score.plan) or UNKNOWN,
        count(plan_ranks(score.plan)),
        seconds(score.olympic_mean_s),
        seconds_range(interval.low, interval.high) if interval else UNKNOWN,
        f"{len(score.completed)} of {len(score.runs)}",
        ratio(row.split.time if row.split else None),
        ratio(row.split.samples if row.split else None),
        ratio(row.split.seconds_per_sample if row.split else None),
        f"{evidence.rescored} of {evidence.completed}",
    ]


def _loaders(board: Board) -> Iterator[str]:
    sentences = [(row.entry, loader_sentence(row.entry.score)) for row in board.rows]
    lines = [f"- {_name(entry)}: {each}" for entry, each in sentences if each]
    if lines:
        yield from (*lines, "")


def _scaling(group: ScalingGroup) -> Iterator[str]:
    start = escape_markdown(group.start)
    yield f"Scaling efficiency from {start}, {escape_markdown(group.kind)}, with 95 % intervals:"
    yield ""
    yield _line(["system", "devices", *map(metric_words, METRICS), "above 100 % by"])
    yield _line([":--", "--:", *["--:"] * len(METRICS), ":--"])
    for entry, claim in group.claims:
        shares = [claimed_share(figure_by(claim, metric)) for metric in METRICS]
        system, devices = escape_markdown(entry.score.system), count(claim.devices[1])
        yield _line([system, devices, *shares, claim.cause or UNKNOWN])
    yield ""


def _name(entry: Entry) -> str:
    return f"{escape_markdown(entry.score.org)}, {escape_markdown(entry.score.system)}"


def _errors(entry: Entry) -> str:
    more = f" (and {len(entry.errors) - 1} more)" if len(entry.errors) > 1 else ""
    return f"{escape_markdown(entry.errors[0].sentence)}{more}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
