"""Format tables as text for a terminal or a file."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from hybridperf.findings import visible
from hybridperf.report.tables import busy_sentence, loader_sentence
from hybridperf.score.metrics import metrics_of
from hybridperf.score.projection import why_slow
from hybridperf.score.statistics import OLYMPIC_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.score.metrics import Metric, Table
    from hybridperf.score.official import Official

__all__ = ["compared_text", "scores_text", "table_text", "wrapped"]

_NOTES: Final[dict[Table, str]] = {
    "ours": f"time to train: olympic mean; interval: {OLYMPIC_INTERVAL}; samples/s: end to end",
    "mlperf": f"olympic, official: minutes; interval: {OLYMPIC_INTERVAL}; samples/s: end to end",
}
_GAP: Final = "   "
_BEFORE_BREAKING: Final = 5  #: lower values of `Metric.keep` are dropped before wrapping
_ALWAYS: Final = 9
_WIDEST_WORD: Final = 24  #: minimum width of a column for long words
#: line break opportunities: after a space, and after a comma outside of numbers
_BREAK: Final = re.compile(r"(?<= )|(?<=,)(?=[^\d ])")


def scores_text(results: Sequence[Official], width: int) -> str:
    """Return tables of at most ``width`` characters, one for this suite and one for MLPerf.

    Notes below each table state how its figures are computed and why results lack an official
    score. Rows are sorted by task and time. Empty columns are omitted, as are the least important
    ones if ``width`` is too small.
    """
    results = sorted(results, key=_by_task_and_time)
    ours = [each for each in results if each.own]
    mlperfs = [each for each in results if not each.own]
    parts = [_scores("ours", ours, width)] if ours else []
    parts += [_scores("mlperf", mlperfs, width)] if mlperfs else []
    return "\n\n".join(parts)


def _by_task_and_time(result: Official) -> tuple[str, str, float]:
    score = result.score
    time_s = math.inf if score.olympic_mean_s is None else score.olympic_mean_s
    return score.edition, score.benchmark, time_s


def compared_text(a: Official, b: Official, width: int) -> str:
    """Return a table of the metrics of two results side by side."""
    rows = []
    for metric in metrics_of("compare"):
        cells = [visible(metric.text(each)) or "-" for each in (a, b)]
        if set(cells) != {"-"}:
            better = f"{metric.better} is better" if metric.better else ""
            rows.append((metric.heading, *cells, better))
    return table_text(("metric", "A", "B", ""), rows, width)


def table_text(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    keep: Sequence[int] | None = None,
) -> str:
    """Return a table of at most ``width`` characters, with numeric columns right-aligned.

    If it is too wide, columns with ``keep`` below 5 are dropped, the lowest first and the rightmost
    of equal ones; then text, but not numbers, is wrapped between words; then columns below 9 are
    dropped. Without ``keep``, no column is dropped. Words are never split: the row continues on the
    next line after a word that is wider than its column.
    """
    rows = [list(row) for row in rows]
    columns = list(range(len(heads)))
    cells = [[head, *(row[index] for row in rows)] for index, head in enumerate(heads)]
    numeric = [_is_numeric(column[1:]) for column in cells]
    widths = [max(map(cell_len, column)) for column in cells]
    least = [
        width
        if number and keep
        else min(
            _WIDEST_WORD,
            max(cell_len(word.rstrip()) for each in column for word in _words(each)),
        )
        for width, number, column in zip(widths, numeric, cells, strict=True)
    ]
    keep = keep or [_ALWAYS] * len(heads)
    for needed, below in ((widths, _BEFORE_BREAKING), (least, _ALWAYS)):
        while _total(needed[index] for index in columns) > width:
            last = min(columns, key=lambda index: (keep[index], -index))
            if keep[last] >= below:
                break
            columns.remove(last)
    narrow = _narrowed([widths[each] for each in columns], [least[each] for each in columns], width)
    for place, index in enumerate(columns):  # wrapped text may leave space
        wraps = (line for cell in cells[index] for line in _lines(cell, narrow[place]))
        narrow[place] = min(narrow[place], max(map(cell_len, wraps)))
    right = [numeric[index] for index in columns]
    lines = [
        *_laid_out([heads[index] for index in columns], narrow, right),
        _GAP.join("─" * each for each in narrow),
    ]
    for row in rows:
        lines += _laid_out([row[index] for index in columns], narrow, right)
    left_out = [head for index, head in enumerate(heads) if index not in columns]
    if left_out:
        lines += ["", *wrapped(f"too wide for {width} columns: {', '.join(left_out)}", width)]
    return "\n".join(lines)


def _scores(table: Table, results: Sequence[Official], width: int) -> str:
    rounds = len({each.score.edition for each in results})
    metrics = [
        metric
        for metric in metrics_of(table)
        if any(metric.text(each) for each in results) and (metric.name != "round" or rounds > 1)
    ]
    rows = [[_cell(metric, each) for metric in metrics] for each in results]
    heads = [metric.heading for metric in metrics]
    text = table_text(heads, rows, width, [metric.keep for metric in metrics])
    notes = (
        *(_NOTES[table], *_of_plans(results), *_without_score(results)),
        *(*_by_both(results), *_unverified(results)),
    )
    return "\n".join([text, *(line for note in notes for line in wrapped(note, width))])


def wrapped(text: str, width: int) -> list[str]:
    """Wrap ``text`` at ``width`` characters, between words only."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _cell(metric: Metric, result: Official) -> str:
    text = metric.text(result)
    if metric.name == "plan" and not text:
        text = result.score.system
    return visible(text) or "-"


def _of_plans(results: Sequence[Official]) -> Iterator[str]:
    """Yield noise, loader throughput and the comparison with the projection, result by result."""
    several = len({each.score.benchmark for each in results}) > 1
    for each in results:
        beside = each.score.beside_projection
        sentences = (
            busy_sentence(each.score),
            loader_sentence(each.score),
            beside.sentence if beside else None,
            why_slow(beside),
        )
        for sentence in filter(None, sentences):
            plan = each.score.plan or each.score.system
            yield f"{visible(f'{each.score.benchmark}, {plan}' if several else plan)}: {sentence}"


def _without_score(results: Sequence[Official]) -> list[str]:
    whys = [each.no_score[1] for each in results if each.minutes is None]
    return [
        f"{whys.count(why)} without official score: {visible(why)}" for why in dict.fromkeys(whys)
    ]


def _unverified(results: Sequence[Official]) -> list[str]:
    whys = [each.trust.unverified for each in results if each.trust.unverified]
    return [f"{whys.count(why)} by stored evidence, {visible(why)}" for why in dict.fromkeys(whys)]


def _by_both(results: Sequence[Official]) -> Iterator[str]:
    """Yield results on which the rules and MLPerf's tool differ, and a count of the others."""
    tested = [each for each in results if each.both is not None]
    differing = []
    for each in tested:
        rules, tool = (verdict.words for verdict in each.both or ())
        if rules != tool:
            differing.append(each)
    for each in differing:
        score = each.score
        yield visible(f"{score.org} {score.system} {score.benchmark}: {each.both_words}")
    if alike := len(tested) - len(differing):
        yield f"same verdict by the rules and by MLPerf's tool: {alike} of {len(tested)}"


def _is_numeric(column: Sequence[str]) -> bool:
    """Tell whether most cells are numbers; some may give a reason instead."""
    numbers = sum(cell[:1].isdigit() for cell in column)
    return 2 * numbers > sum(cell not in {"", "-"} for cell in column) or not any(
        cell not in {"", "-"} for cell in column
    )


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _narrowed(widths: list[int], least: Sequence[int], width: int) -> list[int]:
    """Return ``widths``, reduced from the widest down to ``least`` until the table fits."""
    narrow = list(widths)
    while (over := _total(narrow) - width) > 0:
        places = [place for place in range(len(narrow)) if narrow[place] > least[place]]
        if not places:
            break
        widest = max(places, key=lambda place: narrow[place])
        narrow[widest] = max(least[widest], narrow[widest] - over)
    return narrow


def _words(text: str) -> list[str]:
    return _BREAK.split(text)


def _laid_out(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """Yield the lines of a row, with a line break after each word wider than its column."""
    broken = [list(_lines(cell, width)) for cell, width in zip(cells, widths, strict=True)]
    for nth in range(max(map(len, broken), default=0)):
        line, place = "", 0
        for lines, width, flush in zip(broken, widths, right, strict=True):
            text = lines[nth] if nth < len(lines) else ""
            if text and place and cell_len(line) + len(_GAP) > place:
                yield line.rstrip()
                line = ""
            space = " " * (place - cell_len(line))
            line += space + (" " * (width - cell_len(text)) if flush else "") + text
            place += width + len(_GAP)
        yield line.rstrip()


def _lines(cell: str, width: int) -> Iterator[str]:
    """Yield ``cell`` in lines of at most ``width``, without splitting words."""
    line = ""
    for word in _words(cell):
        if line and cell_len(line) + cell_len(word.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += word
    yield line.rstrip()
