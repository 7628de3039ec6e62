"""No system computes faster than its vendor says: on made-up runs, and on MLPerf's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.findings import Severity
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.rules.mlperf.strict_logs import RULESET, metadata, time, value, write
from tests.rules.round_folder import (
    RESULT,
    RUNS,
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
FLOPS = load_ruleset(RULESET).rules["plausible.throughput"]["flops_per_sample"]["resnet"]
H100_FLOPS = 1979e12  # in its fastest format
SAMPLES = 11 * 1_281_167


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return write_submission(tmp_path)


def _found(round_: Path) -> list[Finding]:
    return [each for each in findings(round_) if each.rule == "plausible.throughput"]


def _describe(round_: Path, **facts: object) -> None:
    (round_ / SYSTEM_FILE).write_text(json.dumps(description(**facts)))


def _last_run_s(round_: Path, run_s: float, division: str = "closed") -> None:
    lines = run(RUNS - 1)
    start = next(each for each in lines if each["key"] == "run_start")
    stop = next(each for each in lines if each["key"] == "run_stop")
    stop["time_ms"] = start["time_ms"] + round(run_s * 1000)
    value("submission_division", division)(lines)
    write(round_ / RESULT / f"result_{RUNS - 1}.txt", lines)


def test_flops_of_a_sample_are_those_of_the_model() -> None:
    parameters = load_ruleset(RULESET).rules["plausible.throughput"]["flops_per_sample"]
    layers, hidden, tokens, masked, vocabulary = 24, 1024, 256, 38, 30_522
    encoder = layers * 12 * hidden**2 * 6 * tokens
    attention = 12 * layers * hidden * tokens**2
    prediction = 6 * hidden * (vocabulary + hidden) * masked

    assert parameters["bert"] == pytest.approx(encoder + attention + prediction, rel=0.01)
    assert parameters["resnet"] == pytest.approx(3 * 2 * 4.1e9)


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.7, None), (0.8, WARNING), (0.99, WARNING), (1.02, ERROR), (90, ERROR)],
)
def test_a_share_of_the_peak(round_: Path, share: float, severity: Severity | None) -> None:
    _last_run_s(round_, SAMPLES * FLOPS / (share * 1024 * H100_FLOPS))

    found = _found(round_)

    assert [each.severity for each in found] == ([severity] if severity else [])
    if severity is not None:
        assert found[0].path == f"{RESULT}/result_4.txt"
        assert found[0].line == len(run(4))
        assert "1024 NVIDIA H100 SXM" in found[0].expected
        assert "samples/s of 24.6 GFLOP" in found[0].found


def test_fewer_accelerators_than_the_run_needs_are_found(round_: Path) -> None:
    _describe(round_, number_of_nodes=1, accelerators_per_node=8)

    assert [each.severity for each in _found(round_)] == [ERROR] * RUNS


@pytest.mark.parametrize(
    "facts",
    [
        {"accelerator_model_name": "Something new"},
        {"accelerator_model_name": 7},
        {"accelerators_per_node": "0"},
        {"number_of_nodes": "many"},
    ],
    ids=str,
)
def test_what_is_unknown_is_no_finding(round_: Path, facts: dict[str, object]) -> None:
    _describe(round_, **facts)
    _last_run_s(round_, 0.001)

    assert _found(round_) == []


def test_the_open_division_may_train_another_model(round_: Path) -> None:
    _last_run_s(round_, 0.001, division="open")

    assert _found(round_) == []


@pytest.mark.parametrize("run_s", [0, -1])
def test_a_run_without_time_is_the_clocks_matter(round_: Path, run_s: float) -> None:
    _last_run_s(round_, run_s)

    assert _found(round_) == []


@pytest.mark.parametrize("wild", [None, "x", True, -5, 1e308, 10**14, [1], {}])
def test_no_count_stops_the_checker(round_: Path, wild: Any) -> None:
    lines = run(0)
    metadata("eval_accuracy", -1, epoch_num=wild)(lines)
    value("train_samples", wild)(lines)
    time("run_stop", 1)(lines)
    write(round_ / RESULT / "result_0.txt", lines)

    for finding in findings(round_):
        assert finding.sentence.isprintable()
        assert len(finding.sentence) < 1_000
