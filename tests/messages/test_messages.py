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
from tests.tiers import in_tiers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tiers import Fact

_FINDING = re.compile(r"(?:error|warning) [a-z]+\.[a-z_]+ \S.*: expected .+, found .+; .+[.?]")
_RULE = re.compile(r"^(?:error|warning) ([a-z]+\.[a-z_]+)", re.MULTILINE)
_PLACES = re.compile(r"(?<![\w.>])/\w")  # of the machine that wrote the file


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    write_valid(folder)
    return folder


def facts(case: Case) -> set[Fact]:
    """Return the rules that a message names; where there is none, of what the mistake is made."""
    rules: set[Fact] = {("rule", rule) for rule in _RULE.findall(case.golden.read_text())}
    return rules or {("mistake", case.name.partition("_")[0])}


@pytest.mark.parametrize("case", in_tiers(CASES, facts), ids=lambda case: case.name)
def test_a_mistake_is_answered_word_by_word(valid: Path, tmp_path: Path, case: Case) -> None:
    text = case.golden.read_text()

    assert message_of(case, valid, tmp_path / "copy") == text
    # It is small, and says where, what and how.
    assert len(text) < 20_000
    assert not _PLACES.search(text)
    assert "Traceback" not in text
    for line in text.splitlines():
        if line.startswith(("error", "warning")):
            assert _FINDING.fullmatch(line)


def test_every_message_is_of_one_mistake() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {path.name for path in GOLDEN.iterdir()} == {case.golden.name for case in CASES}
