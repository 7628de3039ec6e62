"""Scores as one table with ranks, and that table as CSV, JSON and Parquet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from suite.findings import visible
from suite.report.rank import Rank, rank_ranges
from suite.report.tables import csv_cell
from suite.runs.atomic import write_atomically
from suite.scores.table import ALL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd

    from suite.scores.official import Official

__all__ = ["ranks_of", "score_frame", "score_rows", "scores_csv", "write_scores"]

_TEXT: Final = frozenset(
    {
        *("submitter", "system", "benchmark", "division", "plan", "version", "interval_method"),
        *("rcp_mode", "rcp_reason", "rcp_counted_by", "dropped"),
    }
)
_WHOLE: Final = frozenset(
    {
        *("runs", "required_runs", "attempts", "accelerators", "rcp_batch_size"),
        *("rank_best", "rank_worst"),
    }
)


def ranks_of(results: Sequence[Official]) -> list[Rank | None]:
    """Return each result's ranks among those of its benchmark, version and division.

    None where a result has too few runs, no olympic mean, or converged faster than is allowed.
    """
    ranks: list[Rank | None] = [None] * len(results)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, each in enumerate(results):
        score = each.score
        enough = len(score.completed) >= (score.required_runs or 0)
        if enough and each.olympic_minutes is not None and each.verdict.passed is not False:
            key = (score.benchmark, score.version, each.division)
            groups.setdefault(key, []).append(index)
    for group in groups.values():
        ranges = rank_ranges([results[index].score.interval_s for index in group])
        for index, rank in zip(group, ranges, strict=True):
            ranks[index] = rank
    return ranks


def score_rows(results: Sequence[Official]) -> list[dict[str, object]]:
    """Return one row a result with the columns of `ALL_COLUMNS`, safe as JSON and to be shown."""
    rows = []
    for each, rank in zip(results, ranks_of(results), strict=True):
        row = each.row()
        row["rank_best"], row["rank_worst"] = (rank.best, rank.worst) if rank else (None, None)
        rows.append({name: _visible(row[name]) for name in ALL_COLUMNS})
    return rows


def score_frame(rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """Return `score_rows` as a table whose types do not depend on what is known.

    What was dropped is one text, such as ``result_3.txt: fastest``.
    """
    import pandas as pd

    columns = {}
    for name in ALL_COLUMNS:
        values = [_flat(row[name]) for row in rows]
        columns[name] = pd.Series(values, dtype=cast("Any", _type_of(name)))
    return pd.DataFrame(columns)


def scores_csv(frame: pd.DataFrame) -> str:
    """Return one line a result; text that a spreadsheet would take for a formula gets a ``'``."""
    return frame.astype(object).map(csv_cell).to_csv(index=False, lineterminator="\n")


def write_scores(rows: Sequence[dict[str, object]], folder: Path) -> list[Path]:
    """Write ``scores.csv``, ``scores.json`` and ``scores.parquet`` into ``folder``; return them.

    Raises:
        OSError: where ``folder`` cannot be written.
    """
    frame = score_frame(rows)
    contents = {
        "scores.csv": scores_csv(frame).encode(),
        # Not by pandas, which rounds numbers.
        "scores.json": (json.dumps(rows, indent=2, allow_nan=False) + "\n").encode(),
        "scores.parquet": frame.to_parquet(index=False, engine="pyarrow"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _type_of(name: str) -> str:
    if name in _TEXT:
        return "string"
    if name in _WHOLE:
        return "Int64"
    return "boolean" if name == "rcp_passed" else "Float64"


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) else value


def _flat(value: object) -> object:
    if not isinstance(value, list):
        return value
    return "; ".join(f"{each['file']}: {each['why']}" for each in value)
