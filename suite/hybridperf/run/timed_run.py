"""The trainer's interface to a timed run.

The harness decides the training loop, the clock, when to evaluate and when to stop.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Self

from hybridperf.log import keys
from hybridperf.log.writer import LogWriter
from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.run.checkpoints import begin_checkpoint, checkpoint_folder, complete_checkpoint
from hybridperf.run.pulse import Pulse
from hybridperf.run.spec import RunSpec, this_node
from hybridperf.tasks.data import Splits, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf.tasks.task import Block, Task

__all__ = ["OutOfTurnError", "TimedRun"]


class OutOfTurnError(RuntimeError):
    """Raised when the trainer calls a method of `TimedRun` in the wrong phase of the run."""


class TimedRun:
    """A timed training run, as used by each rank.

    Every rank runs the same loop; rank 0 writes the log. The reported quality decides when the
    run ends, so it must be equal on every rank.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.spec = spec
        self.task: Task = spec.task()
        self.plan: ParallelPlan = spec.parallel_plan()
        self.seed = spec.seed
        self._log = LogWriter(spec.log, spec.clock) if rank == 0 else None
        self._pulse = Pulse(spec.pulse_of(this_node()), rank)
        self._splits: Splits | None = None  # not None exactly while the clock runs
        self._block: Block | None = None
        self._block_start_s = 0.0
        self._evaluating = False
        self._reached = False

    @classmethod
    def join(cls) -> Self:
        """Return the run and the rank that the environment variables of this process name."""
        return cls(RunSpec.from_environment(), int(os.environ.get("RANK", "0")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pulse.close()
        if self._log is not None:
            self._log.close()

    @property
    def checkpoint(self) -> Path | None:
        """Return the folder of the checkpoint to load; None if the run starts from scratch."""
        epoch = self.spec.resumed
        return None if epoch is None else checkpoint_folder(self.spec.checkpoints, epoch)

    def describe(self, key: str, value: object = None, **metadata: object) -> None:
        """Log a fact about the trainer's setup, such as its partition.

        A resumed run logs nothing here: its log has the same entries already.
        """
        if self._log is not None and self.spec.resumed is None:
            self._log.point(key, value, **metadata)

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Time the body: log run_start on entry, and run_stop with the run's status on exit.

        A resumed run logs no second run_start. If the body raises, the harness logs run_stop with
        the status aborted.
        """
        if self._log is not None and self.spec.resumed is None:
            self._log.stop(keys.INIT_STOP)
            self._log.start(keys.RUN_START)
        self._pulse.beat()
        self._splits = load(self.task.data)
        yield
        self._splits = None
        if self._log is not None:
            self._log.stop(keys.RUN_STOP, status="success" if self._reached else "aborted")

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of epochs to train, until the target or the limit of epochs is reached.

        Raises:
            OutOfTurnError: if a block ends without `report`.
        """
        for block in self.task.blocks():
            if block.last_epoch <= (self.spec.resumed or 0):
                continue
            self._block, self._block_start_s = block, time.monotonic()
            if self._log is not None:
                epochs = {"first_epoch_num": block.first_epoch, "epoch_count": block.epochs}
                self._log.start(keys.BLOCK_START, **epochs)
            yield block
            self._require_report()
            if self._reached:
                return

    def _require_report(self) -> None:
        if self._block is not None:
            raise OutOfTurnError("a block ended without report(): evaluate after training it")

    def training_data(self, block: Block) -> TrainingData:
        """Return the training samples in the order in which ``block`` visits them.

        Raises:
            OutOfTurnError: outside of `clock`, or if ``block`` is not the current one.
        """
        if self._splits is None or block is not self._block:
            raise OutOfTurnError("training data belongs to the current block, on the clock")
        return TrainingData(self._splits.train, self.task, self.seed, block, self._pulse.beat)

    def evaluation_data(self) -> EvaluationData:
        """End the training of the current block, and return the evaluation samples.

        Raises:
            OutOfTurnError: outside of a block.
        """
        if self._splits is None or self._block is None:
            raise OutOfTurnError("evaluation data is for the end of a block, on the clock")
        self._evaluating = True
        if self._log is not None:
            samples = self.task.training.global_batch_size * len(self.task.steps(self._block))
            rate = samples / (time.monotonic() - self._block_start_s)
            epoch = self._block.last_epoch
            self._log.point(keys.TRACKED_STATS, {"throughput": rate}, epoch_num=epoch)
            self._log.start(keys.EVAL_START, epoch_num=epoch)
        return EvaluationData(self._splits.evaluation, self._pulse.beat)

    def track(self, statistics: Mapping[str, object]) -> None:
        """Log statistics of the current block, such as the breakdown of its time."""
        if self._log is not None and self._block is not None:
            epoch = self._block.last_epoch
            self._log.point(keys.TRACKED_STATS, dict(statistics), epoch_num=epoch)

    def report(self, quality: float, save: Callable[[Path], None] | None = None) -> None:
        """Report the measured quality, a fraction, and end the block.

        If the task requires checkpoints and the target is not reached, ``save`` is called on every
        rank first, with the folder to write to; on rank 0 it must return after all ranks have
        written.

        Raises:
            OutOfTurnError: if no evaluation is in progress.
        """
        if self._block is None or not self._evaluating:
            raise OutOfTurnError("report() follows an evaluation, once")
        self._reached = quality >= self.task.quality.target
        if save is not None and self.task.evaluation.checkpoint and not self._reached:
            self._save_checkpoint(self._block.last_epoch, save)
        if self._log is not None:
            epoch = self._block.last_epoch
            self._log.stop(keys.EVAL_STOP, epoch_num=epoch)
            self._log.point(keys.EVAL_ACCURACY, quality, epoch_num=epoch)
            self._log.stop(keys.BLOCK_STOP, first_epoch_num=self._block.first_epoch)
        self._block, self._evaluating = None, False

    def _save_checkpoint(self, epoch: int, save: Callable[[Path], None]) -> None:
        """Save a checkpoint, before the evaluation is logged: so each logged one has its own."""
        start_s = time.monotonic()
        self._pulse.beat()
        self.spec.checkpoints.mkdir(exist_ok=True)
        save(begin_checkpoint(self.spec.checkpoints, epoch))
        if self._log is not None:
            complete_checkpoint(self.spec.checkpoints, epoch)
            seconds = time.monotonic() - start_s
            self._log.point(keys.CHECKPOINT, {"seconds": seconds}, epoch_num=epoch)
        self._pulse.beat()

    def save(self, weights: Mapping[str, Tensor], part: int = 0) -> None:
        """Save ``weights`` by global parameter name, as file number ``part`` of the final weights.

        Raises:
            OutOfTurnError: inside of `clock`.
        """
        if self._splits is not None:
            raise OutOfTurnError("save() follows the clock")
        from safetensors.torch import save_file

        self.spec.weights.mkdir(exist_ok=True)
        # safetensors rejects tensors that share storage, as those of a stage may.
        plain = {
            name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()
        }
        save_file(plain, self.spec.weights / f"part_{part}.safetensors")
