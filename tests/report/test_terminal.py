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
    assert "or more" in text  # where a run missed its target
    assert ("samples/s" in text.splitlines()[0]) == (width >= 170)


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
