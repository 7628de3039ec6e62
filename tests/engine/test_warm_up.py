"""A warm-up takes a real step, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # has no public name

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import build_mesh
from hybridperf_reference.engine.trainer import Trainer, _host_copies
from hybridperf_reference.models import chain_of
from tests.engine.families import FAMILIES, SEED
from tests.engine.ranks import run_ranks
from tests.engine.warm_up_worlds import Optimizer, train_cold_and_warm, trained

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
TWO_RANKS: list[tuple[str, Optimizer, str]] = [
    ("resnet", "sgd", "dp=2"),
    ("vit", "adamw", "dp=2,zero=3"),
    ("resnet", "lars", "dp=2,zero=1,microbatches=2,bn=deferred"),
    ("vit", "lamb", "pp=2,microbatches=2"),
    ("resnet", "sgd", "pp=2,schedule=zbv,microbatches=2"),
    ("dropout_adamw", "adamw", "tp=2,sp=on"),
    ("dropout_lamb", "lamb", "tp=2,recompute=full"),
]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(2, train_cold_and_warm, folder, TWO_RANKS, output=folder / "printed.txt")
    return folder


def assert_same_bits(warm: dict[str, torch.Tensor], cold: dict[str, torch.Tensor]) -> None:
    assert warm.keys() == cold.keys()
    for name, value in cold.items():
        assert torch.equal(warm[name], value), name


@pytest.mark.parametrize(
    ("family", "optimizer", "plan"),
    [
        ("resnet", "sgd", "dp=1"),
        ("resnet", "lars", "microbatches=2"),
        ("vit", "adamw", "dp=1"),
        ("vit", "lamb", "precision=bf16"),
        ("resnet", "sgd", "precision=fp16"),
    ],
)
def test_training_is_bitwise_identical_with_and_without_a_warm_up(
    family: str, optimizer: Optimizer, plan: str
) -> None:
    cold = trained(family, optimizer, plan, CPU, warm=False)

    warm = trained(family, optimizer, plan, CPU, warm=True)

    assert next(value for name, value in cold.items() if name.endswith(".passes")) > 0
    assert_same_bits(warm, cold)


@pytest.mark.parametrize("item", TWO_RANKS, ids=[":".join(item) for item in TWO_RANKS])
def test_a_warm_up_is_undone_on_every_rank(
    two_ranks: Path, item: tuple[str, Optimizer, str]
) -> None:
    for rank in range(2):
        found = torch.load(two_ranks / f"rank_{rank}.pt", weights_only=True)
        cold, warm = found[TWO_RANKS.index(item)]
        assert any(" " in name for name in cold), "the optimizer has a state"
        assert_same_bits(warm, cold)


def test_the_copy_of_the_weights_is_on_the_host() -> None:
    with FakeTensorMode():  # a device that need not be there
        (copy,) = _host_copies([torch.empty(3, device="xpu")])
    own = torch.ones(3)
    (kept,) = _host_copies([own])
    own.zero_()

    assert copy.device == CPU
    assert torch.equal(kept, torch.ones(3))


def test_a_warm_up_runs_the_optimizer() -> None:
    family = FAMILIES["vit"]
    plan = ParallelPlan()
    mesh = build_mesh(plan, CPU)
    trainer = Trainer(chain_of(family.task(), SEED), family.task(), plan, mesh, SEED)
    steps = []
    trainer._update.optimizer.register_step_post_hook(lambda *_: steps.append(1))

    trainer.warm_up()

    assert steps == [1, 1]
