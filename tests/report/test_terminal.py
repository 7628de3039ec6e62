from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hybridperf.log.package import read_result
from hybridperf.report.terminal import scores_text, table_text
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import with_places
from tests.packages import VALID, write_result

if TYPE_CHECKING:
    from pathlib import Path

HEADS = ("plan", "time", "extra", "what")
ROWS = [
    ["dp=2,pp=2,schedule=1f1b", "12.00 s", "1,234,567", "a sentence of some words"],
    ["dp=1", "9.00 s", "1", "-"],
]


def _words(text: str) -> set[str]:
    return {word for word in text.replace(",", ", ").split() if set(word) != {"─"}}


def test_a_table_that_fits_is_as_wide_as_its_text() -> None:
    assert table_text(("a", "b"), [["x", "1"], ["long", "22"]], 200).splitlines() == [
        "a       b",
        "────   ──",
        "x       1",
        "long   22",
    ]


def test_columns_go_by_what_they_matter_before_text_is_broken() -> None:
    text = table_text(HEADS, ROWS, 60, keep=(9, 9, 2, 5))

    assert "a sentence" in text
    assert "1,234,567" not in text
    assert text.splitlines()[-1] == "too wide for 60 columns: extra"


@given(st.integers(20, 120))
def test_no_word_is_broken_and_no_line_is_too_wide(width: int) -> None:
    for keep in (None, (9, 9, 2, 5)):
        text = table_text(HEADS, ROWS, width, keep)

        whole = {word for cells in (HEADS, *ROWS) for cell in cells for word in _words(cell)}
        table = text.split("\n\n")[0]
        assert _words(table) <= whole
        if width >= 60 or (keep and width >= 27):
            assert max(map(cell_len, table.splitlines())) <= width


def _officials(root: Path) -> list[Official]:
    plan = "dp=2,pp=2,schedule=1f1b,microbatches=4"
    results = [
        write_result(root / "a", plan=plan),
        write_result(root / "b", missed=[4]),
        write_result(root / "c", plan=plan, system="other", times_s=[20.0] * 5),
    ]
    return with_places([official_of(read_result(each), VALID) for each in results])


@pytest.mark.parametrize("width", [80, 100, 170, 200])
def test_scores_fit_the_width(tmp_path: Path, width: int) -> None:
    text = scores_text(_officials(tmp_path), width)

    assert max(map(cell_len, text.splitlines())) <= width
    assert "time to train" in text
    assert "resnet/laptop" in text
    assert "microbatches=4" in text
    assert "official" in text
    # No upper end where a run missed its target; the interval is left out where space is short.
    assert ("or more" in text) is (width > 80)
    assert ("samples/s" in text.splitlines()[0]) == (width >= 170)


def test_eighty_columns_keep_the_runs_sorted_by_task_and_time(tmp_path: Path) -> None:
    packages = [
        write_result(tmp_path / "1", task="vit/laptop", plan="dp=4"),
        write_result(tmp_path / "2", times_s=[20.0] * 3, plan="dp=2"),
        write_result(tmp_path / "3", times_s=[10.0] * 5, plan="dp=1"),
    ]
    results = with_places([official_of(read_result(each), VALID) for each in packages])

    lines = scores_text(results, 80).splitlines()

    assert "runs" in lines[0].split()
    plans = [line.split("dp=")[1].split()[0] for line in lines if line.count("dp=") == 1][:3]
    assert plans == ["1", "2", "4"]
    assert "3 of 5" in "\n".join(lines)


def test_a_rule_is_as_long_as_the_wrapped_text() -> None:
    text = table_text(("name", "words"), [["x", "abcdefgh " * 6]], 40)

    assert text.splitlines()[1] == f"────   {'─' * 26}"


def test_columns_of_which_nothing_is_known_are_left_out(tmp_path: Path) -> None:
    (alone,) = [official_of(read_result(write_result(tmp_path)), VALID)]

    heads = scores_text([alone], 200).splitlines()[0]

    assert "place" not in heads
    assert "task" in heads


def test_a_row_goes_on_below_a_word_wider_than_its_column() -> None:
    name = "a-system-of-more-than-thirty-letters"
    rows = [[name, "1.00", "bert"], ["short", "22.00", "resnet"]]

    assert table_text(("system", "time", "task"), rows, 41).splitlines() == [
        "system                      time   task",
        "────────────────────────   ─────   ──────",
        name,
        "                            1.00   bert",
        "short                      22.00   resnet",
    ]
