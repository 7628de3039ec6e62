from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, Severity, visible

_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _finding(**fields: object) -> Finding:
    facts: dict[str, object] = {
        "rule": "log.chain",
        "expected": "one thing",
        "found": "another",
        "remedy": "run again",
    }
    return Finding(**(facts | fields))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("größer 精度 é", "größer 精度 é"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066\u200b\ufeff", "\\u2066\\u200b\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_characters_that_mislead_are_shown_and_others_stay(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters()))
def test_visible_text_has_no_unsafe_character_and_stays_as_it_is(text: str) -> None:
    shown = visible(text)

    assert not {unicodedata.category(char) for char in shown} & _UNSAFE
    assert visible(shown) == shown


@given(st.text(), st.text(), st.text())
def test_a_sentence_is_one_safe_line(expected: str, found: str, path: str) -> None:
    sentence = _finding(expected=expected, found=found, path=path, line=3).sentence

    assert sentence.splitlines() == [sentence]
    assert not {unicodedata.category(char) for char in sentence} & _UNSAFE


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "expected one thing, found another; run again."),
        ({"path": "a.txt"}, "a.txt: expected one thing, found another; run again."),
        ({"path": "a.txt", "line": 7}, "a.txt:7: expected one thing, found another; run again."),
        ({"remedy": "did you mean dp?"}, "expected one thing, found another; did you mean dp?"),
    ],
)
def test_the_sentence_says_where_what_and_how_to_mend_it(
    fields: dict[str, object], sentence: str
) -> None:
    assert _finding(**fields).sentence == sentence


def test_the_json_contract_has_these_fields() -> None:
    finding = _finding(path="a.txt", line=7, severity=Severity.WARNING)

    assert json.loads(json.dumps(finding.as_json())) == {
        "rule": "log.chain",
        "expected": "one thing",
        "found": "another",
        "remedy": "run again",
        "path": "a.txt",
        "line": 7,
        "severity": "warning",
    }


def test_a_finding_is_an_error_unless_it_says_otherwise() -> None:
    assert _finding().severity is Severity.ERROR


def test_a_refusal_speaks_with_its_finding() -> None:
    finding = _finding(path="\x1b")

    refusal = UserError(finding, ExitCode.INVALID)

    assert str(refusal) == finding.sentence
    assert refusal.finding is finding
    assert refusal.exit_code is ExitCode.INVALID


def test_a_refusal_of_plain_words_is_safe_to_print() -> None:
    refusal = UserError("no\x1b[2J", ExitCode.USAGE)

    assert str(refusal) == "no\\x1b[2J"
    assert refusal.finding is None


def test_exit_statuses_are_the_published_ones() -> None:
    statuses = {code.name: int(code) for code in ExitCode}

    assert statuses == {
        "OK": 0,
        "MISSED": 1,
        "USAGE": 2,
        "INVALID": 3,
        "ENVIRONMENT": 4,
        "INTERRUPTED": 5,
        "SLOWER": 6,
    }
