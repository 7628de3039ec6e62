"""Rulesets of MLPerf rounds are data, and their constraints mean what they say."""

from __future__ import annotations

from typing import Any

import pytest

from hybridperf.log.log import Entry, Log
from hybridperf.rules.mlperf.as_published import check_as_published
from hybridperf.rules.mlperf.constraints import unmet
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset

ROUNDS = [name for name in known_rulesets() if name.startswith("mlperf")]
#: tensors of each benchmark's model, and the rounds whose logs list them
TENSORS = {
    "bert": (398, "1.1 2.0 2.1"),
    "dlrm": (9, "1.1 2.0 2.1"),
    "maskrcnn": (21, "1.1 2.0 2.1"),
    "minigo": (48, "1.1"),
    "resnet": (161, "1.1 2.0 2.1"),
    "rnnt": (7, "1.0 1.1 2.0 2.1"),
    "unet3d": (50, "1.1 2.0 2.1"),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_every_ruleset_reads_and_covers_the_whole_models(name: str) -> None:
    edition = name.removeprefix("mlperf-training-").removesuffix(".0")
    covers = {
        group.when["submission_benchmark"]: len(set(words))
        for group in load_ruleset(name).groups
        for demand in group.demands.values()
        for words in demand.covers.values()
    }

    ssd = {"1.1": 119, "2.0": 89, "2.1": 89}.get(edition)
    wanted = {each: count for each, (count, rounds) in TENSORS.items() if edition in rounds.split()}
    assert covers == wanted | ({"ssd": ssd} if ssd else {})


@pytest.mark.parametrize(
    ("kind", "parameter", "kept", "broken"),
    [
        ("equals", 2, [2, 2.0], [3, "2", None]),
        ("one_of", ["a"], ["a"], ["b", None, ["a"], {}]),
        ("minimum", 0.5, [0.5, 10**400], [0.4, float("nan"), "1", None]),
        ("above", 0, [1, 1e-9], [0, -1, "1", []]),
        ("below", 1, [0.9, float("-inf")], [1, float("nan"), None]),
        ("multiple_of", 0.001, [0.001, 0.3, 7, 0], [0.0005, 10**400, float("inf"), "1", None]),
        ("maximum", 2.69, [2.69, -1], [2.7, float("nan"), "1", None]),
        ("integer", True, [6, True], [6.0, "6", None]),
        ("integral", True, [6, 6.000001, True], [6.1, float("inf"), "6", None]),
        ("length", 2, [[1, 2], "ab"], [[1], 2, None]),
        ("not_empty", True, ["x", 0, None], [""]),
        ("has", ["a", "b"], [{"a": 1, "b": 2, "c": 3}], [{"a": 1}, [], 5, None]),
        ("fields", {"a": {"above": 1}}, [{"a": 2}], [{"a": 1}, {"b": 2}, {"a": "2"}, [], None]),
        (
            "holds",
            "whole(10 * (value[1] / 50 - 1))",
            [[40, 50], [1, 55.0]],
            [[1, 52], [1], 5, None],
        ),
        (
            "doubled_or_halved_from",
            1e-4,
            [1e-4, 2e-4, 5e-5, 1e-4 * 2**30],
            [0, -1e-4, 3e-4, float("nan"), float("inf"), 10**400, "1", None],
        ),
    ],
)
def test_constraints(kind: str, parameter: object, kept: list[Any], broken: list[Any]) -> None:
    assert [value for value in kept if unmet({kind: parameter}, value)] == []
    assert [value for value in broken if not unmet({kind: parameter}, value)] == []


def _said_of_target(name: str, benchmark: str, qualities: list[object], **logged: object) -> str:
    """Return what is found where ``qualities`` miss the target; "" where one reaches it."""
    facts = {"submission_division": "closed", "submission_benchmark": benchmark, **logged}
    log = Log("log")
    log.entries += [Entry(key, 0, "", value, {}, 1) for key, value in facts.items()]
    log.entries += [Entry("eval_accuracy", 0, "", each, {}, 2) for each in qualities]
    found = [
        each for each in check_as_published(log, load_ruleset(name)) if each.rule == "mlperf.target"
    ]
    return found[0].found if found else ""


@pytest.mark.parametrize(
    ("edition", "trained", "qualities", "found"),
    [
        ("3.0", "dlrm_dcnv2", [0.79, 0.802, 0.5], "0.802 as the highest"),
        ("2.1", "resnet", [0.7, 0.75], "0.75 as the highest"),
        ("1.0", "rnnt", [0.2, 0.06], "0.06 as the lowest"),
        ("4.0", "gpt3", [7.1, 2.7], "2.7 as the lowest"),
        ("5.0", "llama31_405b", [6.0, 5.7], "5.7 as the lowest"),
        ("6.1", "qwen35_397b_grpo", [0.5, 0.6], "0.6 as the highest"),
        ("0.7", "bert", [0.5, 0.7], "0.7 as the highest"),
    ],
)
def test_the_best_quality_is_told_where_the_target_is_missed(
    edition: str, trained: str, qualities: list[object], found: str
) -> None:
    said = _said_of_target(f"mlperf-training-{edition}.0", trained, qualities)

    assert said == found


@pytest.mark.parametrize(
    ("batch", "quality", "reached"),
    [(8191, 0.711, False), (8191, 0.712, True), (8192, 0.705, False), (8192, 0.706, True)],
)
def test_the_target_of_bert_in_v0_7_depends_on_the_batch(
    batch: int, quality: float, reached: bool
) -> None:
    name = "mlperf-training-0.7.0"

    assert (_said_of_target(name, "bert", [quality], global_batch_size=batch) == "") is reached


def test_the_first_round_asks_for_what_its_checker_asked() -> None:
    first, second = (load_ruleset(f"mlperf-training-{each}.0") for each in ("0.7", "1.0"))

    assert {"gnmt", "transformer"} == first.benchmarks.keys() - second.benchmarks.keys()
    assert {first.benchmarks[each].runs for each in ("gnmt", "transformer")} == {10}
    assert "gradient_accumulation_steps" not in first.keys
    assert not [each for each in first.rules if each.startswith("checker.s")]


def test_rulesets_without_a_log_to_try_them_on_say_so() -> None:
    untested = [name for name in ROUNDS if load_ruleset(name).untested]

    assert untested == [f"mlperf-training-{each}.0" for each in ("0.7", "6.0", "6.1")]
