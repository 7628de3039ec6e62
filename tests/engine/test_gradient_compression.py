"""Averages of gradients: in full, in bf16, and by PowerSGD as its paper states it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from hybridperf.plan.fields import FIELDS
from hybridperf_reference.engine.gradient_reducer import GRADIENT_AVERAGES, RANK
from tests.engine.gradient_worlds import (
    COMPRESSED,
    SCENARIOS,
    SHAPES,
    Scenario,
    average_all,
    gradients_of,
)
from tests.engine.ranks import start_ranks, wait_for_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

RANKS = (2, 3)
Found = dict[int, list[dict[str, dict[str, Any]]]]
PLAIN = [index for index in range(len(SHAPES)) if index not in COMPRESSED]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what each rank has of each scenario, by the number of ranks."""
    folders = {ranks: tmp_path_factory.mktemp(f"of_{ranks}") for ranks in RANKS}
    wait_for_ranks(
        [
            start_ranks(ranks, average_all, folder, ranks, output=folder / "printed.txt")
            for ranks, folder in folders.items()
        ]
    )
    return {
        ranks: [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(ranks)]
        for ranks, folder in folders.items()
    }


def _matrix(gradient: torch.Tensor) -> Matrix:
    return gradient.double().numpy().reshape(len(gradient), -1)


def _mean(scenario: Scenario, ranks: int, step: int, index: int) -> Matrix:
    given = [gradients_of(scenario, rank, ranks, step)[index] for rank in range(ranks)]
    mean: Matrix = np.mean([_matrix(each) for each in given], axis=0)
    return mean


def _steps(scenario: Scenario) -> list[int]:
    return [int(word[1:]) for word in scenario.actions.split() if word[0] == "s"]


def _orthonormal(columns: Matrix) -> Matrix:
    """Return the columns after Gram-Schmidt."""
    made: list[Matrix] = []
    for column in columns.T:
        for earlier in made:
            column = column - (earlier @ column) * earlier
        made.append(column / np.sqrt(column @ column))
    return np.stack(made, axis=1)


def _emulate(
    scenario: Scenario, ranks: int, index: int, first: Matrix
) -> tuple[list[Matrix], list[list[Matrix]]]:
    """Return each step's average and its residues by rank: algorithms 1 and 2 of the paper."""
    averages: list[Matrix] = []
    residues: list[list[Matrix]] = []
    factors: list[Matrix] = []
    for step in _steps(scenario):
        due = step - 1 - scenario.staleness
        kept = residues[due] if due >= 0 else [np.zeros(1)] * ranks
        factor = factors[due] if due >= 0 else first
        matrices = [
            _matrix(gradients_of(scenario, rank, ranks, step)[index]) + kept[rank]
            for rank in range(ranks)
        ]
        left = _orthonormal(np.mean([matrix @ factor for matrix in matrices], axis=0))
        right = np.mean([matrix.T @ left for matrix in matrices], axis=0)
        averages.append(left @ right.T)
        residues.append([matrix - left @ (matrix.T @ left).T for matrix in matrices])
        factors.append(right)
    return averages, residues


def _residue(parts: Sequence[dict[str, Any]], index: int) -> Matrix:
    """Return the mean over ranks of the residues in all memories."""
    found = [
        value.double().numpy()
        for part in parts
        for key, value in part["state"].items()
        if key.startswith("residue.") and key.endswith(f".{index}")
    ]
    total: Matrix = np.sum(found, axis=0) / len(parts)
    return total


def test_the_ways_are_the_values_of_the_plans_field() -> None:
    assert set(GRADIENT_AVERAGES) == set(FIELDS["gradients"].words)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_all_replicas_have_the_same_averages(found: Found, name: str, ranks: int) -> None:
    one, *others = (part[name]["means"] for part in found[ranks])

    for other in others:
        for step, values in one.items():
            for value, own in zip(values, other[step], strict=True):
                torch.testing.assert_close(value, own, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["algorithm", "algorithm in fp32", "late", "late in fp32"])
def test_powersgd_is_the_algorithm_of_its_paper(found: Found, name: str, ranks: int) -> None:
    scenario, parts = SCENARIOS[name], [part[name] for part in found[ranks]]
    tolerance = 1e-11 if scenario.dtype == torch.float64 else 1e-4

    for index in COMPRESSED:
        first = parts[0]["first"][f"factor.0.{index}"].double().numpy()
        averages, residues = _emulate(scenario, ranks, index, first)
        for step, expected in enumerate(averages):
            value = parts[0]["means"][step][index]
            assert (value.dtype, value.shape) == (scenario.dtype, SHAPES[index])
            error = np.linalg.norm(_matrix(value) - expected) / np.linalg.norm(expected)
            assert error < tolerance, (index, step)
            assert np.linalg.matrix_rank(_matrix(value), tol=1e-3) == RANK
        for rank, part in enumerate(parts):
            for last in range(len(averages) - 1 - scenario.staleness, len(averages)):
                own = part["state"][f"residue.{last % (scenario.staleness + 1)}.{index}"]
                error = np.linalg.norm(own.double().numpy() - residues[last][rank])
                assert error < tolerance * np.linalg.norm(residues[last][rank])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_factors_would_not_shorten_is_averaged_in_full(
    found: Found, name: str, ranks: int
) -> None:
    scenario, means = SCENARIOS[name], found[ranks][0][name]["means"]
    tolerance = 5e-2 if scenario.kind == "bf16" else 1e-6
    every = PLAIN if scenario.kind == "powersgd" else range(len(SHAPES))

    for step in _steps(scenario):
        for index in every:
            expected = _mean(scenario, ranks, step, index)
            error = np.abs(_matrix(means[step][index]).reshape(expected.shape) - expected)
            assert np.isnan(expected).any() or error.max() < tolerance


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "name",
    [
        *("algorithm", "algorithm in fp32", "late", "late in fp32", "resumed", "resumed late"),
        *("resumed under more staleness", "resumed under less staleness"),
        *("zeros first", "low rank"),
    ],
)
def test_averages_and_residues_add_up_to_the_gradients(found: Found, name: str, ranks: int) -> None:
    scenario, parts = SCENARIOS[name], [part[name] for part in found[ranks]]

    for index in COMPRESSED:
        sent = sum(_matrix(parts[0]["means"][step][index]) for step in _steps(scenario))
        given = sum(_mean(scenario, ranks, step, index) for step in _steps(scenario))
        left = sent + _residue(parts, index) - given
        assert np.linalg.norm(left) < 1e-5 * np.linalg.norm(given)
        if name == "late":
            assert np.linalg.norm(_residue(parts, index)) > 0.1 * np.linalg.norm(given)


def _same(one: dict[str, Any], other: dict[str, Any], steps: Iterable[int]) -> None:
    for step in steps:
        for value, own in zip(one["means"][step], other["means"][step], strict=True):
            assert torch.equal(value, own)
    assert one["state"].keys() == other["state"].keys()
    for key, value in one["state"].items():
        assert torch.equal(value, other["state"][key]), key


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("late in fp32", "late, each finished at once"),
        ("late in fp32", "resumed late"),
        ("algorithm in fp32", "resumed"),
    ],
)
def test_neither_the_time_of_finishing_nor_a_resumption_changes_a_bit(
    found: Found, one: str, other: str, ranks: int
) -> None:
    for part in found[ranks]:
        _same(part[one], part[other], _steps(SCENARIOS[one]))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["overflow", "overflow in a bias", "discarded"])
def test_a_step_that_is_skipped_leaves_nothing_behind(found: Found, name: str, ranks: int) -> None:
    for part in found[ranks]:
        states = [dict(part[each]["state"]) for each in (name, "without overflow")]
        assert [int(state.pop("step")) for state in states] == [3, 2]
        assert states[0].keys() == states[1].keys()
        for key, value in states[0].items():
            assert torch.equal(value, states[1][key]), key
        for value, own in zip(
            part[name]["means"][2], part["without overflow"]["means"][2], strict=True
        ):
            assert torch.equal(value, own)
        finite = [bool(value.isfinite().all()) for value in part[name]["means"][1]]
        assert all(finite) is (name == "discarded")


@pytest.mark.parametrize("ranks", RANKS)
def test_a_gradient_of_lower_rank_arrives_whole(found: Found, ranks: int) -> None:
    scenario, means = SCENARIOS["low rank"], found[ranks][0]["low rank"]["means"]
    zero = found[ranks][0]["zeros first"]["means"]

    for index in COMPRESSED:
        for step, inner in ((0, 1), (1, 2)):
            expected = _mean(scenario, ranks, step, index)
            assert np.linalg.matrix_rank(expected) == inner
            assert np.allclose(_matrix(means[step][index]), expected, atol=1e-9)
        assert not zero[0][index].any()
        expected = _mean(SCENARIOS["zeros first"], ranks, 1, index)
        assert np.allclose(_matrix(zero[1][index]), expected, atol=1e-9)


def test_bytes_are_counted(found: Found) -> None:
    elements = [math.prod(shape) for shape in SHAPES]
    plain = sum(elements[index] for index in PLAIN)
    factors = sum(RANK * (SHAPES[index][0] + math.prod(SHAPES[index][1:])) for index in COMPRESSED)
    steps = {"algorithm in fp32": (5, 4), "algorithm": (5, 8)}

    for name, (count, size) in steps.items():
        expected = (count * size * (plain + factors), count * size * sum(elements))
        assert found[2][0][name]["bytes"] == expected
    for name, size in (("fp32", 4), ("bf16", 2)):
        expected = (2 * size * sum(elements), 2 * 4 * sum(elements))
        assert found[2][0][name]["bytes"] == expected


def test_bf16_rounds_before_it_adds(found: Found) -> None:
    scenario, means = SCENARIOS["bf16"], found[2][0]["bf16"]["means"]

    for step in _steps(scenario):
        given = [gradients_of(scenario, rank, 2, step) for rank in range(2)]
        for value, one, other in zip(means[step], *given, strict=True):
            expected = (one.bfloat16() + other.bfloat16()).float() / 2
            assert torch.equal(value, expected)
