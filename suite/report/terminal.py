"""Tables as text, for a terminal or a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from suite.findings import visible
from suite.scores.interval import METHOD
from suite.scores.table import score_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from suite.scores.official import Official
    from suite.scores.score import ResultScore

__all__ = ["official_text", "scores_text", "table_text"]

_HEADS = (
    "task",
    "plan",
    "time to train",
    "95 % interval",
    "samples",
    "samples/s",
    "bubble",
    "exposed",
    "runs",
)
_OFFICIAL_HEADS = (
    "submitter",
    "system",
    "benchmark",
    "accelerators",
    "olympic",
    "95 % interval",
    "RCP",
    "official",
    "samples",
    "samples/s",
    "runs",
)


def official_text(results: Sequence[Official], width: int) -> str:
    """Return MLPerf's results as a table, and why a factor is not known or a test was failed."""
    table = table_text(_OFFICIAL_HEADS, [_official_cells(each) for each in results], width)
    whys = [each.verdict.reason for each in results if each.minutes is None]
    lines = [
        f"{whys.count(why)} without official score: {visible(why)}" for why in dict.fromkeys(whys)
    ]
    note = f"olympic, official: minutes; interval: {METHOD}; samples/s: end to end"
    return "\n".join([table, note, *lines])


def scores_text(scores: Iterable[ResultScore], width: int) -> str:
    """Return ``scores`` as a table of at most ``width`` characters, and how they are made."""
    table = table_text(_HEADS, [_cells(score) for score in scores], width)
    return f"{table}\ntime to train: olympic mean; interval: {METHOD}; samples/s: end to end"


def table_text(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> str:
    """Return a table as wide as its text; columns of numbers are set flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, head in enumerate(heads):
        numeric = all(row[index][:1].isdigit() or row[index] in {"", "-"} for row in rows)
        table.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: what looks like markup is text
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def _cells(score: ResultScore) -> tuple[str, ...]:
    row, interval = score_row(score), score.interval_s
    missed = score.olympic_mean_s is not None and row["olympic_mean_s"] is None
    return (
        visible(score.benchmark),
        visible(score.plan or score.system),
        "missed" if missed else _number(row["olympic_mean_s"], "{:.2f} s"),
        f"{interval.low:.2f} to {interval.high:.2f}" if interval else "-",
        _number(score.samples_to_target, "{:,.0f}"),
        _number(score.throughput_samples_per_s, "{:,.0f}"),
        _number(score.bubble, "{:.1%}"),
        _number(score.exposed_communication, "{:.1%}"),
        f"{len(score.completed)} of {score.required_runs or '?'}",
    )


def _official_cells(result: Official) -> tuple[str, ...]:
    row, interval = result.row(), result.score.interval_s
    return (
        visible(result.score.org),
        visible(result.score.system),
        visible(result.score.benchmark),
        _number(result.accelerators, "{}"),
        _number(result.olympic_minutes, "{:.4f}"),
        f"{interval.low / 60:.4f} to {interval.high / 60:.4f}" if interval else "-",
        _number(result.verdict.factor, "{:.5f}"),
        _number(result.minutes, "{:.4f}"),
        _number(row["samples_to_target"], "{:,.0f}"),
        _number(row["throughput_samples_per_s"], "{:,.0f}"),
        f"{len(result.score.completed)}",
    )


def _number(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
