"""What a rank of a test of the law does: twenty steps under each plan, and what came of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import SEED
from tests.engine.law import BLOCKS, block_data, delayed_family
from tests.engine.quality import quality_of
from tests.engine.worlds import leave, mesh_of
from tests.tiers import plan_facts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridperf.tasks.task import Block
    from hybridperf_reference.engine.mesh import Mesh
    from tests.engine.families import Family
    from tests.tiers import Fact


_WARMED = set[tuple[object, ...]]()


@dataclass(frozen=True)
class Case:
    """A plan of a family, and what differs from the usual."""

    family: str
    optimizer: str
    plan: str
    clip: float = 0.0
    fp32: bool = False
    scale: float = 0.0  #: of the loss in the beginning, if stated
    blocks: tuple[Block, ...] = BLOCKS
    resume_after: int = 0  #: blocks after which another trainer goes on from a checkpoint
    resume_plan: str = ""  #: of that trainer, if another

    def __str__(self) -> str:
        return f"{self.family}-{self.optimizer}-{self.plan}"

    @property
    def parsed(self) -> ParallelPlan:
        return ParallelPlan.parse(self.plan)

    @property
    def facts(self) -> set[Fact]:
        """Return what differs from the usual, for the tiers of tests."""
        names = ("family", "optimizer", "clip", "fp32", "scale")
        own = {(name, value) for name in names if (value := getattr(self, name))}
        return own | plan_facts(self.parsed)

    def row(self) -> Family:
        """Return the family, which trains for twenty steps."""
        row = delayed_family(self.family, self.optimizer, clip=self.clip, fp32=self.fp32)
        return row.of(self.parsed)


def run_cases(folder: Path, cases: Mapping[int, Case]) -> None:
    """Run every case, by its number; they need as many ranks as there are."""
    with join_ranks(next(iter(cases.values())).parsed) as device:
        for number, case in cases.items():
            mesh = mesh_of(case.parsed, device)
            found = run_case(case, mesh, folder / f"checkpoint_{number}")
            leave(folder, number, found)
            dist.barrier()


def run_case(case: Case, mesh: Mesh, checkpoint: Path) -> dict[str, Any]:
    """Train under the plan of ``case`` and return this rank's part of what came of it."""
    row, parts = case.row(), [case.blocks]
    set_float32_math(tf32=False)
    if case.resume_after:
        parts = [case.blocks[: case.resume_after], case.blocks[case.resume_after :]]
    losses, sent, resumed = [], [], []
    for number, blocks in enumerate(parts):
        plan = ParallelPlan.parse((number and case.resume_plan) or case.plan)
        with closing(Trainer(row.chain(), row.task(), plan, mesh, SEED)) as trainer:
            # A tenth of the time, and no number depends on it: one optimizer is enough.
            if (case.family, plan, case.blocks) not in _WARMED:
                trainer.warm_up()
                _WARMED.add((case.family, plan, case.blocks))
            if case.scale:
                trainer._update.scale.factor = case.scale
                trainer._executor.restart()
            if number:
                trainer.load(checkpoint)
            peak = _watch(trainer)
            for block in blocks:
                trainer.train(block_data(row, block))
                statistics = trainer.statistics()
                losses.append(statistics["loss"])
                sent.append(statistics["sent"])
                resumed.append(statistics.get("resumed"))
                quality_of(trainer, row.splits().evaluation)
            if number < len(parts) - 1:
                trainer.save(checkpoint)
    trained = {name: p.requires_grad for name, p in trainer._stage.named_parameters()}
    state = {name: value.clone() for name, value in trainer.weights().items()}
    return {
        "weights": {name: value for name, value in state.items() if trained.get(name)},
        "statistics": {name: value for name, value in state.items() if name not in trained},
        "losses": losses,
        "sent": sent,
        "resumed": resumed,
        "scale": trainer._update.scale.factor,
        "versions": peak["versions"],
        "bytes": peak["bytes"],
        "model_bytes": sum(p.nbytes for p in trainer._stage.parameters()),
    }


def _watch(trainer: Trainer) -> dict[str, int]:
    """Return the most versions, and bytes of weights, that there are after any action."""
    peak = {"versions": 0, "bytes": 0}
    executor: Any = trainer._executor
    versions = executor.versions
    sizes = [parameter.nbytes for parameter in versions.parameters]

    def watched(do: Any) -> Any:
        def then_count(action: Any) -> None:
            do(action)
            kept = [*versions._alive.values(), *versions._unused, versions.parameters]
            storages = {
                weight.data_ptr(): size
                for weights in kept
                for weight, size in zip(weights, sizes, strict=True)
            }
            peak["versions"] = max(peak["versions"], len(versions.alive()))
            peak["bytes"] = max(peak["bytes"], sum(storages.values()))

        return then_count

    executor._do = {kind: watched(do) for kind, do in executor._do.items()}
    return peak
