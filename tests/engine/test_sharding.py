"""What FSDP2 gathers, and that in bf16 it computes what autocast alone does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.engine.ranks import run_ranks
from tests.engine.sharding_worlds import MODELS, PLANS, measure_weights, train_each

if TYPE_CHECKING:
    from pathlib import Path

ALONE, *NARROW, WIDE = PLANS
Found = dict[tuple[str, str], tuple[dict[str, torch.Tensor], dict[str, int], dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(2, train_each, folder, output=folder / "printed.txt")
    found: Found = torch.load(folder / "rank_0.pt", weights_only=True)
    return found


@pytest.mark.parametrize("plan", NARROW)
@pytest.mark.parametrize("model", MODELS)
def test_weights_gathered_in_bf16_give_the_results_of_autocast(
    trained: Found, model: str, plan: str
) -> None:
    (found, _, statistics), (expected, _, beside) = trained[model, plan], trained[model, ALONE]

    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == found[name].dtype
        assert torch.equal(found[name], value), name
    assert statistics["loss"] == beside["loss"]
    assert statistics["gradient_norm"] == pytest.approx(beside["gradient_norm"], rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_bf16_halves_the_bytes_gathered(trained: Found, model: str) -> None:
    narrow, wide = trained[model, "dp=2,zero=3,precision=bf16"][1], trained[model, WIDE][1]

    assert wide.keys() == {"float32"}
    assert narrow.keys() <= {"bfloat16", "float32"}
    # Embeddings, which autocast leaves in fp32, and normalization layers, which are replicated.
    others = {"vit": 0.15, "activated": 0.1}[model] * wide["float32"]
    assert narrow.get("float32", 0) < others
    assert wide["float32"] - others < 2 * narrow["bfloat16"] < wide["float32"]


def test_the_weights_are_never_all_on_the_device(tmp_path: Path) -> None:
    run_ranks(2, measure_weights, tmp_path, output=tmp_path / "printed.txt")

    for rank in range(2):
        peak, sizes = torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True)
        assert max(sizes) <= peak <= 3 * max(sizes)  # what is gathered, its parts and a copy
        assert 3 * max(sizes) < sum(sizes) / 2
