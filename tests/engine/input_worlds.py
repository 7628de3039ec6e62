"""What ranks do in tests of input: read with workers, and count what each of them reads."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil
import torch

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.input import Input, ReadingRole
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.timing import StepTimer
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED
from tests.engine.quality import quality_of
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from hybridperf.tasks.data import Samples
    from hybridperf_reference.engine.chain import Objective

FAMILY = FAMILIES["vit"]


class Readers:
    """An objective that is read ahead, and counts in a file what each process reads."""

    reads_ahead = True

    def __init__(self, objective: Objective, file: Path) -> None:
        self._objective, self._file = objective, file
        self.prepare, self.predictions = objective.prepare, objective.predictions
        self.loss, self.count = objective.loss, objective.count

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        self._note(0, len(indices))
        return self._objective.read(samples, indices, seed, epoch)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        self._note(1, len(indices))
        return self._objective.targets(samples, indices, seed, epoch)

    def evaluation(self, stored: Any) -> Tensor:
        self._note(2, len(stored))
        return self._objective.evaluation(stored)

    def _note(self, kind: int, count: int) -> None:
        with self._file.open("a") as file:  # one short write, which is atomic
            file.write(f"{kind} {count}\n")

    @staticmethod
    def counts(file: Path) -> tuple[int, ...]:
        """Return the samples whose inputs, targets and evaluation inputs were read."""
        counts = [0, 0, 0]
        for line in file.read_text().splitlines() if file.exists() else ():
            kind, count = map(int, line.split())
            counts[kind] += count
        return tuple(counts)


def run_plans(folder: Path, plans: Sequence[str]) -> None:
    """Train and evaluate under each of ``plans``, once from memory and once with readers."""
    parsed = [ParallelPlan.parse(plan) for plan in plans]
    rank, splits = os.environ["RANK"], FAMILY.splits()
    with join_ranks(parsed[0]) as device:
        for text, plan in zip(plans, parsed, strict=True):
            for kind in ("memory", "ahead"):
                family, chain = FAMILY.of(plan), FAMILY.of(plan).chain()
                if kind == "ahead":
                    objective = Readers(chain.objective, folder / f"{text}_{rank}")
                    chain = dataclasses.replace(chain, objective=objective)
                trainer = Trainer(chain, family.task(), plan, mesh_of(plan, device), SEED)
                trainer.warm_up()
                trainer.train(family.batches(splits))
                found = {
                    "statistics": trainer.statistics(),
                    "quality": quality_of(trainer, splits.evaluation),
                    "weights": {name: w.clone() for name, w in trainer.weights().items()},
                }
                trainer.close()
                torch.save(found, folder / f"{text}_{rank}_{kind}.pt")


def read_until_the_end(folder: Path, end: str) -> None:
    """Read a batch with workers, write their process ids, and end when ``go`` appears."""
    # A shell's background commands ignore it, and so do the tests that one of them runs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    splits, device = FAMILY.splits(), torch.device("cpu")
    objective = Readers(FAMILY.chain().objective, folder / "counts")
    own = slice(0, FAMILY.task().training.global_batch_size)
    source = Input(objective, device, ReadingRole())
    for _ in source.train(FAMILY.batches(splits), own, StepTimer(device)):
        for _ in source.evaluate(splits.evaluation.inputs, iter([slice(0, 8)])):
            pass
        pids = [str(child.pid) for child in psutil.Process().children()]
        (folder / "pids.part").write_text(" ".join(pids))
        (folder / "pids.part").rename(folder / "pids")
        while not (folder / "go").exists() or end.startswith("SIG"):
            time.sleep(0.02)
        if end == "raises":
            raise RuntimeError("as a training step that fails")
    source.close()


def begin_to_read(folder: Path) -> None:
    """Start workers that note that they were forked, and go on when ``go`` appears."""

    def wait() -> None:
        (folder / f"forked_{os.getpid()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)

    os.register_at_fork(after_in_child=wait)
    splits, device = FAMILY.splits(), torch.device("cpu")
    source = Input(Readers(FAMILY.chain().objective, folder / "counts"), device, ReadingRole())
    next(source.train(FAMILY.batches(splits), slice(0, 6), StepTimer(device)))
