"""Layers split over a square, a square times a depth, or a cube of ranks are one process's."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hybridperf.plan import ParallelPlan
from tests.engine.ranks import run_ranks
from tests.engine.tensor_nd_worlds import (
    BATCH,
    HIDDEN,
    INNER,
    LAYERS,
    PLANS,
    TOKENS,
    build,
    compute,
    error,
    main,
    mutations,
)
from tests.tiers import selected

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    pytest.param(ranks, plan, marks=pytest.mark.exhaustive if ranks > 8 else ())
    for ranks, plans in PLANS.items()
    for plan in plans
]
NORM_FIRST = pytest.mark.parametrize("norm_first", [True, False])


class Worlds:
    """Worlds of ranks, each started when first asked for."""

    def __init__(self, folder: Path, *, mutate: bool) -> None:
        self._folder, self._mutate = folder, mutate

    def found(self, ranks: int, plan: str) -> list[dict[str, Any]]:
        """Return what each rank noted under ``plan``."""
        folder = self._folder / str(ranks)
        if not folder.exists():
            folder.mkdir()
            output = folder / "printed.txt"
            run_ranks(ranks, main, folder, PLANS[ranks], self._mutate, output=output)
        number = PLANS[ranks].index(plan)
        paths = [folder / f"plan_{number}_rank_{rank}.pt" for rank in range(ranks)]
        return [torch.load(path, weights_only=True) for path in paths]


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    mutate = any("mutate" in each for each in selected(request))
    return Worlds(tmp_path_factory.mktemp("worlds"), mutate=mutate)


@NORM_FIRST
@pytest.mark.parametrize(("ranks", "plan"), CASES)
def test_layers_compute_what_one_process_does(
    worlds: Worlds, ranks: int, plan: str, norm_first: bool
) -> None:
    expected = compute(*build(norm_first=norm_first))

    for each in worlds.found(ranks, plan):
        found = each[f"computed {norm_first}"]
        assert found.keys() == expected.keys()
        assert error(found, expected) < 1e-13


@NORM_FIRST
@pytest.mark.parametrize(("ranks", "plan"), CASES)
def test_elements_received_are_those_of_the_published_formulas(
    worlds: Worlds, ranks: int, plan: str, norm_first: bool
) -> None:
    sizes = dict(ParallelPlan.parse(plan).tensor_axes) | {"tp": ranks}
    for each in worlds.found(ranks, plan):
        received = Fraction(0)
        for operation, count in each[f"bytes {norm_first}"].items():
            kind, axis = operation.split()
            times = 2 if kind == "allreduce" else 1
            received += Fraction(times * (sizes[axis] - 1) * count, 8 * sizes[axis])

        linears, others = formula(plan)

        assert received == LAYERS * (linears + others) + edges(ranks)


def formula(plan: str) -> tuple[Fraction, Fraction]:
    """Return the elements that a rank receives for the linears of a layer, and for all else."""
    arrangement = ParallelPlan.parse(plan)
    axes, q = arrangement.tensor_axes, arrangement.tensor_axes["j"]
    m, d = BATCH * TOKENS, axes.get("e", 1)
    # Query, key and value are one linear layer: they share the gathered inputs.
    shapes = [(HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, INNER), (INNER, HIDDEN)]
    linears = Fraction(0)
    for k, n in shapes:
        if arrangement.tensor == "3d":
            linears += Fraction(2 * (q - 1), q**3) * (m * k + k * n + m * n)
        else:
            linears += 2 * (q - 1) * (Fraction(m * k, d * q**2) + Fraction(k * n, q**2))
            linears += Fraction(2 * (d - 1), d) * Fraction(k * n, q**2)

    def added(size: int) -> Fraction:
        """Return what a rank receives of an all-reduce for each element."""
        return Fraction(2 * (size - 1), size)

    # Of each token two numbers are gathered and two added up; biases and weights of norms are
    # added up over all axes but one, that of their features.
    tokens = Fraction(2 * 2 * m, arrangement.batch_parts)
    norms = tokens * ((q - 1) + added(q))
    copied = Fraction(sum(n for _, n in shapes) + 2 * 2 * HIDDEN, q)
    over = {"2d": [q], "2.5d": [q, d], "3d": [q, q]}[arrangement.tensor]
    return linears, norms + copied * sum(map(added, over))


def edges(ranks: int) -> Fraction:
    """Return what a rank receives at the end of a region, and of gradients at its beginning."""
    return 2 * Fraction(ranks - 1, ranks) * BATCH * TOKENS * HIDDEN


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutate", [True])
@pytest.mark.parametrize(("ranks", "plan"), [(4, PLANS[4][0]), *((8, plan) for plan in PLANS[8])])
def test_a_collective_left_out_or_over_another_axis_is_found(
    worlds: Worlds, ranks: int, plan: str, mutate: bool
) -> None:
    assert mutate
    names = [" ".join(map(str, each)) for each in mutations(ParallelPlan.parse(plan))]

    if "3d" in plan:
        names.append("axes in order of names")

    for name in names:
        errors = [each[name] for each in worlds.found(ranks, plan)]
        assert max(errors) > 1e-6, name
