"""Format figures, and scores and leaderboards as CSV and JSON with one column per metric."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.score.metrics import METRICS, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hybridperf.report.board import Board
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.official import Official
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = [
    "UNKNOWN",
    "busy_sentence",
    "count",
    "csv_text",
    "flat_value",
    "leaderboard_csv",
    "leaderboard_json",
    "loader_sentence",
    "mean_seconds",
    "metrics_markdown",
    "p_value",
    "percent",
    "ratio",
    "run_outcome",
    "score_rows",
    "scores_csv",
    "scores_json",
    "seconds",
    "seconds_range",
]

UNKNOWN: Final = "\N{EN DASH}"
_LARGE: Final = 1e9
_FEW: Final = 100  #: samples/s from which decimals are insignificant
_LEADERBOARD_COLUMNS: Final = ("standing", "valid", "findings")  #: additional to the metrics
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_DECIMALS: Final = 6


def seconds(value: float | None) -> str:
    """Format seconds without the unit: two decimals below 1000, none from 1000 on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return _plain(value, 2 if abs(value) < 1000 else 0)


def mean_seconds(score: ResultScore) -> str:
    """Format the mean time to train; ``≥ 1.00`` if a run missed the target."""
    bound = "≥ " if score.missed and score.mean_s is not None else ""
    return f"{bound}{seconds(score.mean_s)}"


def seconds_range(low: float, high: float) -> str:
    """Format an interval in seconds; ``1.00 or more`` if the upper bound is infinite."""
    if math.isinf(high):
        return f"{seconds(low)} or more"
    return f"{seconds(low)}\N{EN DASH}{seconds(high)}"


def count(value: float | None) -> str:
    """Format a whole number with thousands separators."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 0)


def ratio(value: float | None) -> str:
    """Format a ratio with two decimals, as in ``1.24``."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 2)


def percent(value: float | None) -> str:
    """Format a share (0 to 1) in per cent with one decimal, as in ``12.3 %``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{_plain(value * 100, 1)}\N{NO-BREAK SPACE}%"


def p_value(value: float) -> str:
    """Format a p-value, as in ``p = 0.034`` and ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def run_outcome(run: RunScore) -> str:
    """Return the outcome of a run in words; a run with an invalid log did not miss its target."""
    if run.invalid:
        return "its log is invalid"
    return "missed the target" if run.completion == "missed" else run.outcome.replace("_", " ")


def loader_sentence(score: ResultScore) -> str | None:
    """Compare loader and training throughput in a sentence; None if either is unknown."""
    loader, compute_rate = score.loader_samples_per_s, score.compute_samples_per_s
    if loader is None or compute_rate is None:
        return None
    verdict = "the loaders are the bottleneck" if loader < compute_rate else "the loaders keep up"
    return (
        f"the loaders could deliver {_rate(loader)} samples/s, "
        f"training could consume {_rate(compute_rate)}: {verdict}."
    )


def busy_sentence(score: ResultScore) -> str | None:
    """Say in a sentence that the machine was busy, and why; None if it was quiet, or unknown."""
    busy = [run for run in score.completed if run.busy]
    if not busy:
        return None
    longest = max(busy, key=lambda run: run.elapsed_s)
    return f"busy machine in {score.busy_runs}: in run {longest.number}, {longest.busy}."


def _plain(value: float, decimals: int) -> str:
    return f"{value:.3g}" if abs(value) >= _LARGE else f"{value:,.{decimals}f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= _FEW else f"{value:.3g}"


def leaderboard_csv(boards: Sequence[Board]) -> str:
    """Return CSV with one row per result, guarded against formula injection as in `csv_text`."""
    rows = (_leaderboard_row(entry, len(entry.findings)) for entry in _entries(boards))
    return csv_text((*METRICS, *_LEADERBOARD_COLUMNS), rows)


def leaderboard_json(boards: Sequence[Board]) -> str:
    """Return JSON with one object per result: the columns of the CSV, with full findings."""
    rows = [
        _leaderboard_row(entry, [finding.as_json() for finding in entry.findings])
        for entry in _entries(boards)
    ]
    return json.dumps({"format": 1, "results": rows}, indent=2, allow_nan=False) + "\n"


def score_rows(results: Iterable[Official]) -> list[dict[str, object]]:
    """Return one JSON-serialisable row per result with a column per metric, strings escaped."""
    return [
        {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in map(row_of, results)
    ]


def scores_json(rows: Sequence[Mapping[str, object]]) -> str:
    """Return `score_rows` as a JSON list."""
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def scores_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Return `score_rows` as CSV, guarded against formula injection as in `csv_text`."""
    return csv_text(tuple(METRICS), rows)


def metrics_markdown() -> str:
    """Return a Markdown table that documents every column."""
    lines = ["| column | | unit | better |", "|---|---|---|---|"]
    lines += [
        f"| `{each.name}` | {each.doc} | {each.unit} | {each.better or ''} |"
        for each in METRICS.values()
    ]
    return "\n".join(lines)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return CSV with a header and one line per row; unknown values are empty.

    Strings that a spreadsheet would evaluate are prefixed by ``'`` (OWASP, CSV injection).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])
    return text.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    value = flat_value(value)
    if isinstance(value, str):
        return f"{chr(39) * value.startswith(_FORMULA)}{visible(value)}"
    return value


def _entries(boards: Sequence[Board]) -> Iterator[JudgedResult]:
    for board in boards:
        yield from board.entries


def _leaderboard_row(entry: JudgedResult, findings: object) -> dict[str, object]:
    # Round, since the last digits of a float differ between processors.
    values = {
        name: round(value, _DECIMALS) if isinstance(value, float) else value
        for name, value in row_of(entry.official).items()
    }
    return values | {
        "benchmark": entry.benchmark,
        "no_place": entry.no_place,
        "standing": entry.standing,
        "valid": entry.valid,
        "findings": findings,
    }


def flat_value(value: object) -> object:
    """Return a list of dropped runs as a string, such as ``result_3.txt: fastest``."""
    if not isinstance(value, list):
        return value
    return "; ".join(f"{each['file']}: {each['why']}" for each in value)
