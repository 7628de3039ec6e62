"""Rulesets of MLPerf rounds are data, and their constraints mean what they say."""

from __future__ import annotations

from typing import Any

import pytest

from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset, unmet


@pytest.mark.parametrize("name", [name for name in known_rulesets() if name.startswith("mlperf")])
def test_every_ruleset_reads_and_covers_the_whole_models(name: str) -> None:
    covers = [
        len(words) for demand in load_ruleset(name).demands for words in demand.covers.values()
    ]

    assert sorted(covers) == [161, 398]


@pytest.mark.parametrize(
    ("kind", "parameter", "kept", "broken"),
    [
        ("equals", 2, [2, 2.0], [3, "2", None]),
        ("one_of", ["a"], ["a"], ["b", None, ["a"], {}]),
        ("minimum", 0.5, [0.5, 10**400], [0.4, float("nan"), "1", None]),
        ("above", 0, [1, 1e-9], [0, -1, "1", []]),
        ("below", 1, [0.9, float("-inf")], [1, float("nan"), None]),
        ("multiple_of", 0.001, [0.001, 0.3, 7, 0], [0.0005, 10**400, float("inf"), "1", None]),
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
