"""What ``hybridperf check`` says to the mistakes of a new submitter, word by word.

``golden/<case>.txt`` holds each message as it was read and found good: it says what, where,
what was expected and found, and how to mend it. After a change of words, write them anew with
``python -m tests.messages.rewrite`` and read what ``git diff`` shows as a submitter would.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.messages.case import GOLDEN, Case, message_of, write_valid
from tests.messages.cases import CASES

if TYPE_CHECKING:
    from pathlib import Path

_FINDING = re.compile(r"(?:error|warning) [a-z]+\.[a-z_]+ \S.*: expected .+, found .+; .+[.?]")
_PLACES = re.compile(r"(?<![\w.>])/\w")  # of the machine that wrote the file


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    write_valid(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_answered_word_by_word(valid: Path, tmp_path: Path, case: Case) -> None:
    assert message_of(case, valid, tmp_path / "copy") == case.golden.read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_message_is_small_and_says_where_what_and_how(case: Case) -> None:
    text = case.golden.read_text()

    assert len(text) < 20_000
    assert not _PLACES.search(text)
    assert "Traceback" not in text
    for line in text.splitlines():
        if line.startswith(("error", "warning")):
            assert _FINDING.fullmatch(line)


def test_every_message_is_of_one_mistake() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {path.name for path in GOLDEN.iterdir()} == {case.golden.name for case in CASES}
