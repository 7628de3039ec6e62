"""Rulesets of MLPerf rounds are data, and their constraints mean what they say."""

from __future__ import annotations

from typing import Any

import pytest

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
