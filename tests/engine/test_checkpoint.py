"""A checkpoint saved under one plan is whole under every other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from reference_impls.engine.checkpoint import load_checkpoint
from reference_impls.engine.optim import build_optimizer
from reference_impls.engine.stage import Stage
from suite.plan import ParallelPlan
from tests.engine.checkpoint_worlds import CASES, PLANS, STEPS
from tests.engine.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)  # of the one test that starts all worlds
PAIRS = [(family, saved, under) for family, under in CASES for saved in range(len(PLANS[family]))]
# AdamW magnifies rounding of small gradients.
RELATIVE = 1e-5


@dataclass
class State:
    """What the ranks of a plan hold together."""

    tensors: dict[str, Tensor]
    loss: float | None

    def assert_equals(self, other: State) -> None:
        assert self.tensors.keys() == other.tensors.keys()
        for name, value in other.tensors.items():
            assert torch.equal(self.tensors[name], value), name

    def assert_close(self, other: State) -> None:
        assert self.loss == pytest.approx(other.loss, rel=1e-5)
        for name, value in other.tensors.items():
            if "key.bias" in name:  # softmax makes its gradient zero, but for rounding
                continue
            error = (self.tensors[name].float() - value).norm()
            assert error <= RELATIVE * value.norm(), f"{name}: {error / value.norm():.1e}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one world of each size, all at once, and return what they left."""
    folder = tmp_path_factory.mktemp("checkpoints")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    worlds = []
    for ranks in (1, 2, 4):
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        module = [*(torchrun if ranks > 1 else []), "tests.engine.checkpoint_worlds", str(folder)]
        with (folder / f"{ranks}.txt").open("w") as printed:
            worlds.append(
                subprocess.Popen(
                    [sys.executable, "-m", *module],
                    env=environment,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                )
            )
    for world in worlds:
        world.wait(timeout=500)
    output = "\n".join((folder / f"{ranks}.txt").read_text()[-2000:] for ranks in (1, 2, 4))
    assert all(world.returncode == 0 for world in worlds), output
    return folder


def read(folder: Path, name: str, ranks: int) -> list[State]:
    """Return the states that ranks noted under ``name``, those of all ranks put together."""
    parts: list[tuple[dict[str, Any], ...]] = [
        torch.load(folder / f"{name}_rank_{rank}.pt", weights_only=True) for rank in range(ranks)
    ]
    states = []
    for of_ranks in zip(*parts, strict=True):
        tensors: dict[str, Tensor] = {}
        for part in of_ranks:
            assert part["steps"] in STEPS
            for key, value in (part["weights"] | part["moments"]).items():
                assert torch.equal(tensors.setdefault(key, value), value), f"replicas differ: {key}"
        states.append(State(tensors, of_ranks[0].get("loss")))
    return states


def ranks_of(family: str, number: int) -> int:
    return ParallelPlan.parse(PLANS[family][number]).ranks


@pytest.mark.parametrize(("family", "saved", "under"), PAIRS)
def test_every_plan_goes_on_from_the_checkpoint_of_every_other(
    folder: Path, family: str, saved: int, under: int
) -> None:
    before, after = read(folder, f"{family}_{saved}", ranks_of(family, saved))

    loaded, *resumed = read(folder, f"{family}_{saved}_as_{under}", ranks_of(family, under))

    loaded.assert_equals(before)
    assert len(resumed) == (saved == under or not FAMILIES[family].batch_norm)
    for state in resumed:
        if saved == under:
            state.assert_equals(after)
            assert state.loss == after.loss
        else:
            state.assert_close(after)


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    family = FAMILIES["vit"]
    stage = Stage(family.chain().units)
    optimizer = build_optimizer(stage, family.task().optimizer)

    with pytest.raises(RuntimeError, match=r"has no model\.\S+: it is of another model"):
        load_checkpoint(folder / "resnet_0", stage, optimizer, plan="dp=1", replica=0)
