from __future__ import annotations

import pytest
import torch

from reference_impls.engine.mesh import build_mesh, join_ranks, local_device
from suite.plan import ParallelPlan


def test_too_few_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    with (
        pytest.raises(RuntimeError, match=r"'dp=4' needs 4 ranks, torchrun started 2"),
        join_ranks(ParallelPlan(dp=4)),
    ):
        pass


def test_one_rank_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    plan = ParallelPlan()

    with join_ranks(plan) as device:
        mesh = build_mesh(plan, device)

    assert (mesh.replica, mesh.stage, mesh.part) == (0, 0, 0)
    assert (mesh.group("shard"), mesh.pp_group, mesh.replica_groups()) == (None, None, [])
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(mesh.sum(values), values)
    assert [part.tolist() for part in mesh.gather(values)] == [[1.0, 2.0]]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_the_processor_is_the_device() -> None:
    assert local_device() == torch.device("cpu")
