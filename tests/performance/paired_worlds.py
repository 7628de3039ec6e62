"""What a rank of a comparison does: ``-m tests.performance.paired_worlds <case> <folder>``.

Both sides live in the same processes. Each rank leaves what `take_turns` found, and, for each side,
the gradients of its first step and its weights after its first epoch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.norms import is_dtensor
from tests.performance.overhead_worlds import Ours
from tests.performance.paired_cases import CASES
from tests.performance.pairing import Side, take_turns

if TYPE_CHECKING:
    from tests.performance.peers import Peer
    from tests.performance.work import Work


class Held(Protocol):
    """What a rank holds of the model of one side, by the global names."""

    optimizer: torch.optim.Optimizer
    parameters: dict[str, Tensor]

    def weights(self) -> dict[str, Tensor]:
        """Return copies of their present values, unsharded."""


class HeldByTrainer:
    """What our trainer holds."""

    def __init__(self, side: Ours) -> None:
        self._trainer = side._trainer
        self.optimizer = self._trainer._update.optimizer
        # Now: during a step the modules may hold others, such as versions of them.
        self.parameters = dict[str, Tensor](self._trainer._stage.named_parameters())

    def weights(self) -> dict[str, Tensor]:
        """Return the values of this rank's stage."""
        values = self._trainer.weights()
        return {name: values[name].clone() for name in self.parameters}


class HeldByPeer:
    """What a published trainer holds."""

    def __init__(self, side: Peer) -> None:
        self.optimizer = side.optimizer
        self.parameters: dict[str, Tensor] = {
            f"{unit.name}.{name}": parameter
            for unit in side.units
            for name, parameter in unit.module.named_parameters()
        }

    def weights(self) -> dict[str, Tensor]:
        """Return the values of the chain's units."""
        return {name: value.detach().clone() for name, value in self.parameters.items()}


class Recorded:
    """A side whose first gradients, and first weights after an epoch, are kept."""

    def __init__(self, side: Side, held: Held) -> None:
        self.train_epoch, self._mean_loss, self._held = side.train_epoch, side.mean_loss, held
        self.kept: dict[str, dict[str, Tensor]] = {"gradients": {}}
        self._hook = held.optimizer.register_step_pre_hook(self._keep_gradients)

    def mean_loss(self) -> float | None:
        """Return the side's mean loss."""
        if "weights" not in self.kept:
            self.kept["weights"] = self._held.weights()
        return self._mean_loss()

    def _keep_gradients(self, *_: Any) -> None:
        self._hook.remove()
        self.kept["gradients"] = {
            name: (gradient.full_tensor() if is_dtensor(gradient) else gradient).clone()
            for name, parameter in self._held.parameters.items()
            if (gradient := parameter.grad) is not None
        }


def compare(name: str, folder: Path) -> None:
    """Time both sides of the case ``name``."""
    case = CASES[name]
    torch.set_num_threads(1)
    plan, work = ParallelPlan.parse(case.plan), case.work()
    pairs = int(os.environ.get("HYBRIDPERF_PAIRS", case.pairs))
    with join_ranks(plan) as device:
        ours = _trainer(work, plan, device, executes_programs=case.executes_programs)
        if isinstance(case.theirs, str):
            theirs = _trainer(work, ParallelPlan.parse(case.theirs), device)
        else:
            peer = case.theirs(work)
            theirs = Recorded(peer, HeldByPeer(peer))
        found = take_turns(ours, theirs, pairs=pairs, meet=_meet)
    rank = os.environ["RANK"]
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))
    torch.save({"ours": ours.kept, "theirs": theirs.kept}, folder / f"rank_{rank}.pt")


def _meet() -> None:
    dist.barrier()


def _trainer(
    work: Work, plan: ParallelPlan, device: torch.device, *, executes_programs: bool = False
) -> Recorded:
    """Return our trainer under ``plan``, whose executor is that of programs if so asked."""
    if executes_programs:
        assert not plan.delays_or_compresses, "its executor is that of programs anyway"
        always = property(lambda _: True)
        with mock.patch.object(ParallelPlan, "delays_or_compresses", always):
            side = Ours(work, plan, device)
    else:
        side = Ours(work, plan, device)
    return Recorded(side, HeldByTrainer(side))


if __name__ == "__main__":
    compare(sys.argv[1], Path(sys.argv[2]))
