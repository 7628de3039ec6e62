from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import escape_markdown, leaderboard_markdown

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("laptop-dp2", "laptop-dp2"),
        ("a|b", r"a\|b"),
        ("`rm`", r"\`rm\`"),
        ("<img>", "&lt;img&gt;"),
        ("&lt;", "&amp;lt;"),
        ("[x](javascript:y)", r"\[x\]\(javascript:y\)"),
        ("https://evil", r"https\://evil"),
        ("www.evil.org", r"www\.evil.org"),
        ("@all #1", r"\@all \#1"),
        ("a\nb\x1b", r"a\\nb\\x1b"),
        ("a\\|b", r"a\\\|b"),
    ],
)
def test_markdown_shows_text_and_does_nothing_with_it(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


def test_every_row_has_as_many_cells_as_the_header(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14], org="other", plan="dp=2|`y`\n")
    submissions.add([10, 11], system="short")
    text = leaderboard_markdown(boards(read_entries(submissions.root)))

    rows = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]

    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {16}
    assert "hybridperf run resnet/laptop --plan dp=2 --runs 5" in text


def test_an_empty_folder_says_how_to_begin() -> None:
    assert "`hybridperf run" in leaderboard_markdown([])
