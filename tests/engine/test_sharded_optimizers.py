"""Optimisers of sharded and tensor-parallel parameters compute what those of whole ones do."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from tests.engine.optimizer_worlds import CONFIG, LAYOUTS, STEPS, Model, main, train, weights
from tests.engine.ranks import run_ranks
from tests.tiers import in_tiers, selected

if TYPE_CHECKING:
    from tests.tiers import Fact


def facts(case: tuple[int, str, str]) -> set[Fact]:
    ranks, layout, name = case
    return {("ranks", ranks), ("optimizer", name), *(("layout", w) for w in layout.split("+"))}


CASES = in_tiers(
    [
        (ranks, layout, name)
        for ranks, layouts in LAYOUTS.items()
        for layout in layouts
        for name in CONFIG
    ],
    facts,
)
Found = dict[tuple[str, str], tuple[dict[str, Tensor], list[int]]]


@pytest.fixture(scope="module")
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Found]:
    """Start each world once and collect what its layouts computed."""
    found, cases = {}, [(each["ranks"], each["layout"], each["name"]) for each in selected(request)]
    for ranks in {ranks for ranks, *_ in cases}:
        folder = tmp_path_factory.mktemp(f"world_{ranks}")
        own = [(layout, name) for each, layout, name in cases if each == ranks]
        run_ranks(ranks, main, folder, own, output=folder / "printed.txt")
        found[ranks] = torch.load(folder / "found.pt", weights_only=True)
    return found


@cache
def one_process(name: str) -> dict[str, Tensor]:
    model = Model()
    assert train(model, CONFIG[name], replica=0, replicas=1) == [0] * STEPS
    return weights(model)


@pytest.mark.parametrize(("ranks", "layout", "name"), CASES)
def test_three_steps_give_the_parameters_of_one_process_and_reduce_all_norms_at_once(
    worlds: dict[int, Found], ranks: int, layout: str, name: str
) -> None:
    actual, counts = worlds[ranks][layout, name]

    expected = one_process(name)

    start = weights(Model())
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert not torch.equal(value, start[key])
        error = (actual[key] - value).norm() / value.norm()
        assert error <= 1e-6, f"{key}: relative error {error:.1e}"
    groups = 2 if "+" in layout else 1
    norms = groups if name in {"lars", "lamb", "clipped"} else 0
    # FSDP adds the gradients of sequence parallelism up as it shards them.
    partial = 1 if layout == "sp" else 0
    assert counts == [norms + partial] * STEPS
