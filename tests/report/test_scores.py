"""Scores as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.package import read_result
from hybridperf.report.frames import write_scores
from hybridperf.report.tables import score_rows, scores_csv
from hybridperf.score.metrics import METRICS
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import with_places
from tests.packages import VALID, write_result

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


def _official(root: Path, **how: Any) -> Official:
    return official_of(read_result(write_result(root, **how)), VALID)


def _results(root: Path) -> list[Official]:
    return with_places(
        [
            _official(root / "a", times_s=[10.0, 10.1, 10.2, 10.3, 10.4]),
            _official(root / "b", times_s=[20.0, 20.1, 20.2, 20.3, 20.4]),
            _official(root / "c", times_s=[10.0, 10.1, 10.2, 10.3, 10.5], missed=[4]),
            _official(root / "d", times_s=[10.0, 10.1, 10.2]),
            _official(root / "e", division="open"),
        ]
    )


def test_places_are_within_benchmark_and_division_and_tie(tmp_path: Path) -> None:
    places = [str(each.place) for each in _results(tmp_path)]

    assert places == ["1–2", "3", "1–2", "None", "1"]  # noqa: RUF001 - a range takes an en dash


def _read_parquet(path: Path) -> tuple[list[str], list[dict[str, object]]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(path)
    return table.column_names, table.to_pylist()


def test_the_files_hold_the_same_table(tmp_path: Path) -> None:
    rows = score_rows(_results(tmp_path))

    paths = write_scores(rows, tmp_path / "new" / "scores")

    assert [path.name for path in paths] == ["scores.csv", "scores.json", "scores.parquet"]
    assert json.loads(paths[1].read_text()) == rows
    columns, cells = _read_parquet(paths[2])
    lines = list(csv.DictReader(io.StringIO(paths[0].read_text())))
    assert columns == list(lines[0]) == list(rows[0]) == list(METRICS)
    for row, line, cell in zip(rows, lines, cells, strict=True):
        assert cell | {"dropped": None} == row | {"dropped": None}
        assert line["olympic_minutes"] == str(row["olympic_minutes"])
        assert line["place_worst"] == (
            "" if row["place_worst"] is None else str(row["place_worst"])
        )
        assert line["dropped"] == cell["dropped"]
    assert lines[2]["dropped"] == (
        "result_0.txt: fastest; result_4.txt: slowest: did not reach the target"
    )
    assert (lines[2]["interval_low_s"] != "", lines[2]["interval_high_s"]) == (True, "")
    assert lines[0]["rcp_passed"] == "true"
    assert "seed 20260101" in lines[0]["interval_method"]


def _types(rows: Sequence[dict[str, object]], folder: Path) -> object:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_schema(write_scores(rows, folder)[-1])


def test_csv_and_json_have_the_same_bytes_without_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    rows = score_rows(_results(tmp_path))
    full = write_scores(rows, tmp_path / "full")
    monkeypatch.setitem(sys.modules, "pandas", None)

    base = write_scores(rows, tmp_path / "base")

    assert [path.name for path in base] == ["scores.csv", "scores.json"]
    assert [path.read_bytes() for path in base] == [path.read_bytes() for path in full[:2]]


def test_types_do_not_depend_on_what_is_known(tmp_path: Path) -> None:
    full = _types(score_rows(_results(tmp_path)), tmp_path / "1")
    none = _types([], tmp_path / "2")
    nothing = _types(score_rows([_official(tmp_path / "x", times_s=[])]), tmp_path / "3")

    assert full == none == nothing


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_text_that_looks_like_a_formula_is_text(tmp_path: Path, first: str) -> None:
    rows = score_rows([_official(tmp_path, org=f"{first}HYPERLINK(1)", system="=cmd")])

    (line,) = csv.DictReader(io.StringIO(scores_csv(rows)))

    assert line["system"] == "'=cmd"
    assert line["submitter"] == f"'{first}HYPERLINK(1)"


def test_names_that_are_no_text_can_be_written(tmp_path: Path) -> None:
    rows = score_rows([_official(tmp_path / "r", org="caf\udce9", system="\x1b[31m")])

    paths = write_scores(rows, tmp_path / "out")

    assert _read_parquet(paths[2])[1][0]["submitter"] == "caf\\udce9"
    assert "\x1b" not in paths[0].read_text() + paths[1].read_text()


_WITHOUT = """
import sys
for name in ("torch", "torchvision", "pandas", "pyarrow", "sklearn", "scipy", "transformers"):
    sys.modules[name] = None  # as where it is not installed
from hybridperf.cli import main
sys.exit(main(sys.argv[1:]))
"""


def _without_packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_judging_and_reporting_need_neither_torch_nor_pandas(tmp_path: Path) -> None:
    one = write_result(tmp_path / "in" / "one")
    two = write_result(tmp_path / "in" / "two", times_s=[20.0, 21.0, 22.0, 23.0, 24.0])
    commands = [
        ("score", str(tmp_path / "in"), "--format", "csv"),
        ("score", str(tmp_path / "in")),
        ("compare", str(one.folder), str(two.folder)),
        ("check", str(one.root)),
        ("report", str(one.root), "--out", str(tmp_path / "report")),
    ]

    for command in commands:
        done = _without_packages(*command)
        assert (done.returncode, done.stderr) == (0, ""), command

    out = tmp_path / "out"
    done = _without_packages("score", str(tmp_path / "in"), "--out", str(out))
    assert done.returncode == 0
    assert done.stderr == (
        "hybridperf: no scores.parquet, which needs pandas and pyarrow: "
        "pip install 'hybridperf[tables]'\n"
    )
    assert sorted(path.name for path in out.iterdir()) == ["scores.csv", "scores.json"]
