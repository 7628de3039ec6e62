"""Write scores and leaderboards as CSV, JSON and Parquet, with one column per metric."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

from hybridperf.findings import visible
from hybridperf.run.files import write_atomically
from hybridperf.score.metrics import METRICS, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hybridperf.report.board import Board
    from hybridperf.report.judged import Entry
    from hybridperf.score.official import Official

__all__ = [
    "csv_text",
    "leaderboard_csv",
    "leaderboard_json",
    "metrics_markdown",
    "score_rows",
    "scores_csv",
    "write_scores",
]

_OF_ENTRIES: Final = ("standing", "valid", "findings")  #: additional columns of the leaderboard
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_DECIMALS: Final = 6


def leaderboard_csv(boards: Sequence[Board]) -> str:
    """Return CSV with one row per result, guarded against formula injection as in `csv_text`."""
    rows = (_leaderboard_row(entry, len(entry.findings)) for entry in _entries(boards))
    return csv_text((*METRICS, *_OF_ENTRIES), rows)


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


def scores_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Return `score_rows` as CSV, guarded against formula injection as in `csv_text`."""
    return csv_text(tuple(METRICS), rows)


def write_scores(rows: Sequence[dict[str, object]], folder: Path) -> list[Path]:
    """Write ``scores.csv``, ``scores.json`` and ``scores.parquet`` to ``folder``.

    Returns their paths, in this order; without pyarrow, ``scores.parquet`` is omitted.

    Raises:
        OSError: if ``folder`` cannot be written.
    """
    contents = {
        "scores.csv": scores_csv(rows).encode(),
        "scores.json": (json.dumps(rows, indent=2, allow_nan=False) + "\n").encode(),
    }
    try:
        contents["scores.parquet"] = _parquet(rows)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


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
    value = _flat(value)
    if isinstance(value, str):
        return f"{chr(39) * value.startswith(_FORMULA)}{visible(value)}"
    return value


def _parquet(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return the rows as Parquet, with column types that do not depend on missing values."""
    import pyarrow as pa
    from pyarrow import parquet

    types: dict[str, Any] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "truth": pa.bool_(),
        "list": pa.string(),
    }
    columns = {
        name: pa.array([_flat(row[name]) for row in rows], type=types[metric.kind])
        for name, metric in METRICS.items()
    }
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def _entries(boards: Sequence[Board]) -> Iterator[Entry]:
    for board in boards:
        yield from board.entries


def _leaderboard_row(entry: Entry, findings: object) -> dict[str, object]:
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


def _flat(value: object) -> object:
    """Return a list of dropped runs as a string, such as ``result_3.txt: fastest``."""
    if not isinstance(value, list):
        return value
    return "; ".join(f"{each['file']}: {each['why']}" for each in value)
