"""Units whose linears are split compute what whole ones do, whatever lies around the linears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.engine.ranks import run_ranks
from tests.engine.tensor_worlds import (
    CASES,
    SHARING_TOKENS,
    TOKENS,
    build,
    compute,
    gradients,
    main,
)

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    run_ranks(RANKS, main, folder, output=folder / "printed.txt")
    return folder


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(
    ("name", "sp"),
    [*((name, False) for name in CASES), *((name, True) for name in SHARING_TOKENS)],
)
def test_a_split_unit_computes_what_the_whole_unit_does(
    folder: Path, name: str, sp: bool, rank: int
) -> None:
    found = torch.load(folder / f"rank_{rank}.pt", weights_only=True)[name, sp]
    unit, inputs = build(name, TOKENS + sp)

    expected = compute(unit, inputs) | gradients(unit)

    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-12, atol=1e-12, msg=key)
