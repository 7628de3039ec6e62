from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from suite.logs.package import read_result
from suite.report.score_files import (
    ranks_of,
    score_frame,
    score_rows,
    scores_csv,
    write_scores,
)
from suite.scores.official import Official, official_score
from suite.scores.score import score_result
from suite.scores.table import ALL_COLUMNS
from tests.packages import write_result

if TYPE_CHECKING:
    from suite.report.rank import Rank


def _official(root: Path, **how: Any) -> Official:
    result = read_result(write_result(root, **how))
    return official_score(result, score_result(result), None)


def _results(root: Path) -> list[Official]:
    return [
        _official(root / "a", times_s=[10.0, 10.1, 10.2, 10.3, 10.4]),
        _official(root / "b", times_s=[20.0, 20.1, 20.2, 20.3, 20.4]),
        _official(root / "c", times_s=[10.0, 10.1, 10.2, 10.3, 10.5], missed=[4]),
        _official(root / "d", times_s=[10.0, 10.1, 10.2]),
        _official(root / "e", division="open"),
    ]


def test_ranks_are_within_benchmark_and_division_and_tie(tmp_path: Path) -> None:
    ranks: list[Rank | None] = ranks_of(_results(tmp_path))

    # c has no interval, as a resample may hold two misses, so nothing is certain of it.
    assert [str(rank) for rank in ranks] == ["1–2", "2–3", "1–3", "None", "1"]  # noqa: RUF001


def test_the_files_hold_the_same_table(tmp_path: Path) -> None:
    rows = score_rows(_results(tmp_path))

    paths = write_scores(rows, tmp_path / "new" / "scores")

    text, made, parquet = paths
    assert [path.name for path in paths] == ["scores.csv", "scores.json", "scores.parquet"]
    assert json.loads(made.read_text()) == rows
    table = pd.read_parquet(parquet)
    lines = list(csv.DictReader(io.StringIO(text.read_text())))
    assert list(table.columns) == list(lines[0]) == list(rows[0]) == list(ALL_COLUMNS)
    for row, line, (_, cells) in zip(rows, lines, table.iterrows(), strict=True):
        assert (
            cells["olympic_minutes"] is pd.NA
            or cells["olympic_minutes"] == (row["olympic_minutes"])
        )
        assert line["olympic_minutes"] == str(row["olympic_minutes"])
        assert line["rank_worst"] == ("" if row["rank_worst"] is None else str(row["rank_worst"]))
        assert line["dropped"] == cells["dropped"]
    assert lines[2]["dropped"] == (
        "result_0.txt: fastest; result_4.txt: slowest: did not reach the target"
    )
    assert lines[0]["rcp_passed"] == "true"
    assert "seed 20260101" in lines[0]["interval_method"]


def test_types_do_not_depend_on_what_is_known(tmp_path: Path) -> None:
    full, none = score_frame(score_rows(_results(tmp_path))), score_frame([])
    nothing = score_frame(score_rows([_official(tmp_path / "x", times_s=[])]))

    assert list(full.dtypes) == list(none.dtypes) == list(nothing.dtypes)


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_text_that_looks_like_a_formula_is_text(tmp_path: Path, first: str) -> None:
    rows = score_rows([_official(tmp_path, org=f"{first}HYPERLINK(1)", system="=cmd")])

    (line,) = csv.DictReader(io.StringIO(scores_csv(score_frame(rows))))

    assert line["system"] == "'=cmd"
    assert line["submitter"] == f"'{first}HYPERLINK(1)"


def test_names_that_are_no_text_can_be_written(tmp_path: Path) -> None:
    rows = score_rows([_official(tmp_path / "r", org="caf\udce9", system="\x1b[31m")])

    paths = write_scores(rows, tmp_path / "out")

    assert pd.read_parquet(paths[2])["submitter"][0] == "caf\\udce9"
    assert "\x1b" not in paths[0].read_text() + paths[1].read_text()


def test_pandas_waits_until_a_table_is_asked_for() -> None:
    script = "import sys, suite.cli.commands.score; print({'pandas', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert done.stdout.strip() == "set()"


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()

    assert all(f"| `{name}` | {meaning} |" in text for name, meaning in ALL_COLUMNS.items())
