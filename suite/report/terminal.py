"""Tables as text, for a terminal or a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from suite.findings import visible
from suite.report.loader import loader_sentence
from suite.scores.interval import METHOD
from suite.scores.table import score_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from suite.report.rank import Rank
    from suite.scores.official import Official
    from suite.scores.score import ResultScore

__all__ = ["official_text", "own_text", "scores_text", "table_text"]

_NOTE: Final = f"time to train: olympic mean; interval: {METHOD}; samples/s: end to end"
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
    "rank",
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
    "evaluations",
    "runs",
    "dropped",
)


def official_text(results: Sequence[Official], ranks: Sequence[Rank | None], width: int) -> str:
    """Return MLPerf's results as a table, and why a factor is not known or a test was failed."""
    rows = [_official_cells(*each) for each in zip(results, ranks, strict=True)]
    note = f"olympic, official: minutes; interval: {METHOD}; samples/s: end to end"
    return "\n".join([table_text(_OFFICIAL_HEADS, rows, width), note, *_without_score(results)])


def own_text(results: Sequence[Official], ranks: Sequence[Rank | None], width: int) -> str:
    """Return our own results as a table like `scores_text`, with ranks and official scores."""
    rows = [
        (
            _rank(rank),
            *_cells(each.score),
            _dropped(each),
            _number(each.verdict.factor, "{:.5f}"),
            _number(None if each.minutes is None else each.minutes * 60, "{:.2f} s"),
        )
        for each, rank in zip(results, ranks, strict=True)
    ]
    table = table_text(("rank", *_HEADS, "dropped", "RCP", "official"), rows, width)
    loaders = _loaders(each.score for each in results)
    return "\n".join([table, _NOTE, *loaders, *_without_score(results)])


def scores_text(scores: Sequence[ResultScore], width: int) -> str:
    """Return ``scores`` as a table of at most ``width`` characters, and how they are made."""
    table = table_text(_HEADS, [_cells(score) for score in scores], width)
    return "\n".join([table, _NOTE, *_loaders(scores)])


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


def _official_cells(result: Official, rank: Rank | None) -> tuple[str, ...]:
    row, interval = result.row(), result.score.interval_s
    return (
        _rank(rank),
        visible(result.score.org),
        visible(result.score.system),
        visible(result.score.benchmark),
        _number(result.accelerators, "{}"),
        _number(result.olympic_minutes, "{:.4f}"),
        f"{interval.low / 60:.3f} to {interval.high / 60:.3f}" if interval else "-",
        _number(result.verdict.factor, "{:.5f}"),
        _number(result.minutes, "{:.4f}"),
        _number(row["samples_to_target"], "{:,.0f}"),
        _number(row["throughput_samples_per_s"], "{:,.0f}"),
        _number(result.evaluations, "{:,.1f}"),
        f"{len(result.score.completed)}",
        _dropped(result),
    )


def _loaders(scores: Iterable[ResultScore]) -> Iterator[str]:
    for score in scores:
        if sentence := loader_sentence(score):
            yield f"{visible(score.plan or score.system)}: {sentence}"


def _without_score(results: Sequence[Official]) -> list[str]:
    whys = [each.verdict.reason for each in results if each.minutes is None]
    return [
        f"{whys.count(why)} without official score: {visible(why)}" for why in dict.fromkeys(whys)
    ]


def _dropped(result: Official) -> str:
    """Return the numbers of the runs that do not count; the fastest and the slowest go unsaid."""
    words = {"fastest": "", "slowest": "", "slowest: did not reach the target": " missed"}
    return ", ".join(
        f"{each['run']}{words.get(str(each['why']), ' not scored')}" for each in result.dropped
    )


def _rank(rank: Rank | None) -> str:
    return "-" if rank is None else str(rank)


def _number(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
