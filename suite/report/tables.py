"""The leaderboard as data: one row a result, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Final

from suite.findings import visible
from suite.scores.table import COLUMNS, score_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from suite.report.board import Board
    from suite.report.entry import Entry
    from suite.report.rank import Rank

__all__ = ["CSV_COLUMNS", "csv_cell", "leaderboard_csv", "leaderboard_json"]

CSV_COLUMNS: Final = (*COLUMNS, "rank_best", "rank_worst", "standing", "valid", "findings")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_DECIMALS: Final = 6


def leaderboard_csv(boards: Sequence[Board]) -> str:
    """Return one line a result; text that a spreadsheet would take for a formula gets a ``'``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for entry, rank in _ranked_entries(boards):
        row = _row(entry, rank) | {"findings": len(entry.findings)}
        writer.writerow([csv_cell(row[column]) for column in CSV_COLUMNS])
    return text.getvalue()


def leaderboard_json(boards: Sequence[Board]) -> str:
    """Return one object a result: the columns of the CSV, with the findings in full."""
    rows = [
        _row(entry, rank) | {"findings": [finding.as_json() for finding in entry.findings]}
        for entry, rank in _ranked_entries(boards)
    ]
    return json.dumps({"format": 1, "results": rows}, indent=2, allow_nan=False) + "\n"


def csv_cell(value: object) -> object:
    """Return ``value`` as CSV takes it: guarded text, ``true``, or as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"{chr(39) * value.startswith(_FORMULA)}{visible(value)}"
    return value


def _ranked_entries(boards: Sequence[Board]) -> Iterator[tuple[Entry, Rank | None]]:
    for board in boards:
        yield from ((row.entry, row.rank) for row in board.rows)
        yield from ((entry, None) for entry in board.invalid)


def _row(entry: Entry, rank: Rank | None) -> dict[str, object]:
    scores = {name: _rounded(value) for name, value in score_row(entry.score).items()}
    return scores | {
        "benchmark": entry.benchmark,
        "rank_best": rank.best if rank else None,
        "rank_worst": rank.worst if rank else None,
        "standing": entry.standing,
        "valid": entry.valid,
    }


def _rounded(value: object) -> object:
    # The last digits of a float differ between processors; the file must not.
    return round(value, _DECIMALS) if isinstance(value, float) else value
