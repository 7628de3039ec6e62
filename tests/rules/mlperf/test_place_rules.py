"""Rules of logs against folder and description."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from tests.rules.mlperf.strict_logs import value, write
from tests.rules.round_folder import (
    ORG,
    RESULT,
    SYSTEM,
    SYSTEM_FILE,
    description,
    findings,
    run,
    write_submission,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.findings import Finding

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return write_submission(tmp_path)


def _relog(round_: Path, key: str, new: object, *numbers: int) -> list[Finding]:
    for number in numbers or range(5):
        lines = run(number)
        value(key, new)(lines)
        write(round_ / RESULT / f"result_{number}.txt", lines)
    return [each for each in findings(round_) if each.rule.startswith("place.")]


@pytest.mark.parametrize(
    ("key", "new", "rule", "found"),
    [
        ("submission_org", "Other", "place.organisation", "'Other' in 5 of 5 logs"),
        ("submission_status", "preview", "place.status", "'preview' in 5 of 5 logs"),
        ("submission_platform", "64xpod", "place.platform", "'64xpod' in 5 of 5 logs"),
        (
            "submission_platform",
            "128xSUBMISSION_PLATFORM_PLACEHOLDER",
            "place.platform",
            "'128xSUBMISSION_PLATFORM_PLACEHOLDER' in 5 of 5 logs",
        ),
    ],
)
def test_what_logs_say_otherwise_is_a_warning_for_the_result(
    round_: Path, key: str, new: str, rule: str, found: str
) -> None:
    (finding,) = _relog(round_, key, new)

    assert (finding.rule, finding.severity) == (rule, WARNING)
    assert finding.found == found
    assert finding.path == RESULT


@pytest.mark.parametrize("platform", ["pod", "128xpod", "128 x pod", "1024 x H100", "gaudi-8"])
def test_platforms_that_fit(round_: Path, platform: str) -> None:
    assert _relog(round_, "submission_platform", platform) == []


def test_capitals_of_an_organisation_do_not_count(round_: Path) -> None:
    assert _relog(round_, "submission_org", "ACME") == []


def test_some_logs_of_another_organisation_are_counted(round_: Path) -> None:
    (finding,) = _relog(round_, "submission_org", "Other", 1, 3)

    assert finding.found == "'Other' in 2 of 5 logs"


def test_open_logs_in_a_closed_result_are_errors(round_: Path) -> None:
    found = _relog(round_, "submission_division", "open", 2)

    assert [(each.rule, each.severity, each.path) for each in found] == [
        ("place.division", ERROR, f"{RESULT}/result_2.txt")
    ]
    assert found[0].line == 3


def test_closed_logs_in_an_open_result_are_warnings(round_: Path) -> None:
    (round_ / SYSTEM_FILE).write_text(json.dumps(description(division="Open")))

    found = [each for each in findings(round_) if each.rule == "place.division"]

    assert [each.severity for each in found] == [WARNING] * 5


def test_a_log_in_the_folder_of_another_benchmark_is_an_error(round_: Path) -> None:
    (round_ / RESULT).rename(round_ / ORG / "results" / SYSTEM / "bert")

    found = [each for each in findings(round_) if each.rule == "place.benchmark"]

    assert [each.severity for each in found] == [ERROR] * 5
    assert found[0].expected == "submission_benchmark bert, as the folder is called"


@pytest.mark.parametrize(
    ("status", "logged", "agrees"),
    [
        ("available", "onprem", True),
        ("Available on-premise", "cloud", False),
        ("Available cloud", "cloud", True),
        ("preview", "onprem", False),
        ("Research, Development, or Internal", "research", True),
        ("of no known kind", "onprem", True),  # found by the rule of the description's words
    ],
)
def test_words_of_logs_for_those_of_descriptions(
    round_: Path, status: str, logged: str, agrees: bool
) -> None:
    (round_ / SYSTEM_FILE).write_text(json.dumps(description(status=status)))

    rules = [each.rule for each in _relog(round_, "submission_status", logged)]

    assert rules == ([] if agrees else ["place.status"])


@pytest.mark.parametrize("wild", [None, [], {"a": []}, 7, "\u202e\x1b[31m", "9" * 5000])
def test_no_value_stops_the_checker(round_: Path, wild: object) -> None:
    for key in ("org", "division", "status", "platform", "benchmark"):
        for finding in _relog(round_, f"submission_{key}", wild):
            assert finding.sentence.isprintable()
            assert len(finding.sentence) < 1_000


def test_without_a_description_only_folders_are_compared(round_: Path) -> None:
    (round_ / SYSTEM_FILE).write_text("{")

    assert _relog(round_, "submission_status", "preview") == []
