"""A ring of ranks computes what attention over all tokens does, and sends no more than it must."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from hybridperf_reference.transformer import dense_attention
from tests.engine import ring_mutations
from tests.engine.compare import assert_computed
from tests.engine.compare import found as left_by_ranks
from tests.engine.ranks import run_ranks
from tests.engine.ring_worlds import BATCH, CASES, FEATURES, Case, main, tensors_of

if TYPE_CHECKING:
    from pathlib import Path

#: of the norm: the roundings of a few sums, as attention in one process has them
RELATIVE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(scope="module", params=[2, 4])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return what each of two ranks has, then each of four."""
    folder: Path = tmp_path_factory.mktemp("ring")
    run_ranks(request.param, main, folder, output=folder / "printed.txt")
    return [
        torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(request.param)
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_ring_computes_what_attention_over_all_tokens_does(
    found: list[dict[str, Any]], name: str
) -> None:
    case = CASES[name]
    parts = zip(*(rank[name]["tensors"] for rank in found), strict=True)
    expected = attended(case, ranks=len(found))

    for of_ranks, whole in zip(parts, expected, strict=True):
        actual = torch.cat(of_ranks, dim=2)
        assert actual.dtype == case.dtype
        error = (actual.double() - whole).norm() / whole.norm()
        assert error <= RELATIVE[case.dtype]


@pytest.mark.parametrize("name", CASES)
def test_ranks_send_keys_and_values_and_their_gradients_as_often_as_a_ring_must(
    found: list[dict[str, Any]], name: str
) -> None:
    case, ranks = CASES[name], len(found)
    each = 2 * BATCH * case.heads * case.tokens * FEATURES  # keys and values
    wide = max(4, case.dtype.itemsize)  # gradients are added up in fp32 or wider

    sent = sum(rank[name]["sent"] for rank in found)

    assert sent == each * (2 * (ranks - 1) * case.dtype.itemsize + ranks * wide)
    if case.dtype.itemsize == wide:
        assert sent == (3 * ranks - 2) * each * wide


@pytest.mark.exhaustive
def test_what_one_process_computes_tells_each_wrong_exchange(tmp_path: Path) -> None:
    item = f"{ring_mutations.FAMILY}:{ring_mutations.PLAN}"
    run_ranks(4, ring_mutations.main, tmp_path, output=tmp_path / "printed.txt")

    for number, name in enumerate(ring_mutations.MUTATIONS):
        parts = left_by_ranks(tmp_path, 4, number)
        if name == "nothing":
            assert_computed(item, parts)
        else:
            with pytest.raises(AssertionError, match=r"relative error|ranks differ"):
                assert_computed(item, parts)


def attended(case: Case, ranks: int) -> list[Tensor]:
    """Return outputs and gradients in one process, which drops what each of ``ranks`` drops."""
    *leaves, gradient = (each.double() for each in tensors_of(case))
    query, key, value = (leaf.requires_grad_() for leaf in leaves)
    if case.dropout:
        scores = query @ key.transpose(-2, -1) / math.sqrt(FEATURES)
        outputs = scores.softmax(-1) * factors(case, ranks) @ value
    else:
        outputs = dense_attention(query, key, value)
    outputs.backward(gradient)
    return [outputs.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def factors(case: Case, ranks: int) -> Tensor:
    """Return 0 or 1 / (1 - dropout) [batch, head, query, key], drawn for each pair of ranks."""
    sizes = [len(part) for part in torch.empty(case.tokens).chunk(ranks)]
    rows = []
    for rank, size in enumerate(sizes):
        torch.manual_seed(rank)
        seed = int(torch.randint(2**62, ()))
        row = []
        for owner, keys in enumerate(sizes):
            generator = torch.Generator().manual_seed(seed + owner)
            kept = torch.empty(BATCH, case.heads, size, keys, dtype=torch.float64)
            row.append(kept.bernoulli_(1 - case.dropout, generator=generator))
        rows.append(torch.cat(row, dim=3))
    return torch.cat(rows, dim=2) / (1 - case.dropout)
