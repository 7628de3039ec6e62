"""The trainer's interface to a timed run.

The harness decides the training loop, the clock, when to evaluate and when to stop. Ranks report
their progress over a channel; the harness stamps it, counts predictions and writes the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import numpy as np

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData, TrainingData, map_array, map_memory, seal_bytes
from hybridperf.run.channel import (
    CHANNEL_VARIABLE,
    ChannelError,
    Describe,
    Evaluate,
    EvaluateInitial,
    EvaluationVerdict,
    Imported,
    InitialSamples,
    Pause,
    Predictions,
    Proceed,
    Ready,
    Refusal,
    Save,
    Saved,
    Start,
    Track,
    Welcome,
    connect,
)
from hybridperf.run.processes import Pulse
from hybridperf.run.resume import begin_checkpoint, checkpoint_folder, complete_checkpoint
from hybridperf.run.spec import (
    RUN_VARIABLE,
    checkpoints_folder,
    pulse_file,
    this_node,
    work_folder,
)
from hybridperf.tasks.data import Samples, load
from hybridperf.tasks.overrides import apply_overrides
from hybridperf.tasks.registry import read_task

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from torch import Tensor

    from hybridperf.run.channel import Channel, Message
    from hybridperf.tasks.task import Block, Task

__all__ = ["OutOfTurnError", "TimedRun", "seal_weights", "unshared"]

Answer = TypeVar("Answer", Welcome, InitialSamples, Start)
_NOT_STARTED: Final = f"{CHANNEL_VARIABLE} is not set: start this trainer with 'hybridperf run'"


class OutOfTurnError(RuntimeError):
    """Raised when the trainer calls a method of `TimedRun` in the wrong phase of the run."""


class TimedRun:
    """A timed training run, as used by each rank.

    Every rank runs the same loop; the descriptions and statistics of rank 0 are logged.
    """

    def __init__(self, channel: Channel, rank: int, folder: Path) -> None:
        self._channel, self._rank = channel, rank
        welcome = self._await(Welcome)
        task = read_task(folder / welcome.task_path)
        self.task: Task = apply_overrides(task, welcome.overrides)
        self.plan = ParallelPlan.parse(welcome.plan)
        self.seed = welcome.seed  #: seed of the initial weights and of dropout
        self.work = work_folder(folder)  #: folder that the trainer may write
        self._first_step, self._pauses = welcome.resumed or 0, welcome.pauses
        self.saves_checkpoints = welcome.saves  #: so that `report` and `parts` call ``save``
        self._initial = welcome.initial
        self.initial_format = welcome.initial_format  #: None: names of tensors tell it
        self._pulse = Pulse(pulse_file(self.work, this_node()), rank)
        self._start: Start | None = None  # not None exactly while the clock runs
        self._train: Samples | None = None
        self._held_out: object = None
        self._block: Block | None = None
        self._evaluation: EvaluationData | None = None  # of the current block, once it has begun
        self._steps = 0  # of the current block
        self._goes_on = True

    @classmethod
    def join(cls) -> Self:
        """Return the run of this process's rank, as the environment variables name them.

        Raises:
            RuntimeError: if the harness did not start this process.
        """
        if CHANNEL_VARIABLE not in os.environ:
            raise RuntimeError(_NOT_STARTED)
        rank = int(os.environ.get("RANK", "0"))
        folder = Path(os.environ[RUN_VARIABLE]).parent
        return cls(connect(os.environ[CHANNEL_VARIABLE], rank), rank, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._goes_on:
            with contextlib.suppress(ChannelError):  # the harness has ended
                self._channel.send(Imported(json.dumps(_imported_files()).encode()))
        self._pulse.close()
        self._channel.close()

    @property
    def checkpoint(self) -> Path | None:
        """Return the folder of the checkpoint to load; None if the run starts from scratch."""
        folder = checkpoints_folder(self.work)
        return checkpoint_folder(folder, self._first_step) if self._first_step else None

    @property
    def initial(self) -> Path | None:
        """Return the file of the weights to begin from; None if the run does not begin from one.

        It begins from random weights then, or from a checkpoint.
        """
        return Path(self._initial) if self._initial and not self._first_step else None

    @contextlib.contextmanager
    def initial_evaluation(self) -> Iterator[EvaluationData]:
        """Evaluate the `initial` weights in the body, which every rank does before `clock`.

        The body predicts the samples, as in `evaluation_data`.

        Raises:
            UserError: exit status 3 if the quality is not the task's.
        """
        self._channel.send(EvaluateInitial())
        samples = self._await(InitialSamples)
        if samples.inputs is None:
            inputs = load(self.task.data).evaluation.inputs
        else:
            inputs = map_array(samples.inputs, self._memory_of(samples))
        data = EvaluationData(inputs, self._pulse.beat)
        yield data
        self._channel.send(_message_of(data))
        if isinstance(answer := self._channel.receive(), Refusal):
            raise UserError(answer.reason, ExitCode.INVALID)

    def describe(self, key: str, value: object = None, **metadata: object) -> None:
        """Log a fact about the trainer's setup, such as its partition.

        A resumed run logs no fact twice.
        """
        if self._rank == 0:
            self._channel.send(Describe(key, value, metadata))

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Time the body: the clock runs once all ranks are here, until the last evaluation.

        A resumed run's clock has not been stopped.
        """
        self._channel.send(Ready())
        self._start = self._await(Start)
        self._pulse.beat()
        self._read(self._start)
        yield
        self._start = self._train = self._held_out = None

    def _read(self, start: Start) -> None:
        """Take the samples that the harness handed over, or read the data set."""
        if start.train_inputs and start.train_labels and start.evaluation_inputs:
            memory = self._memory_of(start)
            places = (start.train_inputs, start.train_labels, start.evaluation_inputs)
            inputs, labels, self._held_out = (map_array(place, memory) for place in places)
            self._train = Samples(inputs, labels)
        else:
            splits = load(self.task.data)
            self._train, self._held_out = splits.train, splits.evaluation.inputs

    def _memory_of(self, samples: InitialSamples | Start) -> mmap.mmap | bytearray:
        """Return the memory of samples, which came as a file descriptor or over the network."""
        if not self._channel.local:
            return bytearray(samples.payload)  # writable, as the other is
        descriptor = self._channel.take_descriptor()
        memory = map_memory(descriptor)
        os.close(descriptor)
        return memory

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to train, until the target or the limit of epochs is reached.

        Raises:
            OutOfTurnError: if a block ends without `report`.
        """
        for block in self.task.blocks():
            if self.task.steps(block).stop <= self._first_step:
                continue
            self._block, self._steps = block, 0
            yield block
            self._require_report()
            if not self._goes_on:
                return

    def _require_report(self) -> None:
        if self._block is not None:
            raise OutOfTurnError("a block ended without report(): evaluate after training it")

    def training_data(self, block: Block) -> TrainingData:
        """Return the training samples in the order in which ``block`` visits them, in one part.

        Raises:
            OutOfTurnError: outside of `clock`, or if ``block`` is not the current one.
        """
        if self._start is None or self._train is None or block is not self._block:
            raise OutOfTurnError("training data belongs to the current block, on the clock")
        steps = self.task.steps(block)
        return TrainingData(
            self._train,
            self.task,
            self._start.seed,
            block,
            self._begin_step,
            range(max(steps.start, self._first_step), steps.stop),
        )

    def parts(self, block: Block, save: Callable[[Path], None]) -> Iterator[TrainingData]:
        """Yield the training samples of ``block`` in parts, between which checkpoints are saved.

        There is one part unless the run saves checkpoints beside evaluations. All ranks train the
        same parts. ``save`` is as in `report`.

        Raises:
            OutOfTurnError: as `training_data`.
        """
        data = self.training_data(block)
        left = data.steps
        while self._pauses and left:
            self._channel.send(Pause(self._steps))
            if isinstance(answer := self._receive(), Save):
                self._save_checkpoint(left.start, save)
                answer = self._receive()
            assert isinstance(answer, Proceed), f"{answer} is no Proceed"
            yield dataclasses.replace(data, part=left[: answer.steps])
            left = left[answer.steps :]
        if left:
            yield data

    def _begin_step(self) -> None:
        self._pulse.beat()
        self._steps += 1

    def evaluation_data(self) -> EvaluationData:
        """End the training of the current block, and return the inputs of evaluation samples.

        They are shuffled for this run. `EvaluationData.predict` takes the predictions.

        Raises:
            OutOfTurnError: outside of a block.
        """
        if self._start is None or self._block is None:
            raise OutOfTurnError("evaluation data is for the end of a block, on the clock")
        self._channel.send(Evaluate(self._steps))
        self._evaluation = EvaluationData(self._held_out, self._pulse.beat)
        return self._evaluation

    def track(self, statistics: Mapping[str, object]) -> None:
        """Log statistics of the current block, such as the breakdown of its time."""
        if self._rank == 0 and self._block is not None:
            self._channel.send(Track(dict(statistics)))

    def report(
        self,
        weights: Callable[[], Mapping[str, Tensor]] | None = None,
        save: Callable[[Path], None] | None = None,
    ) -> float:
        """Hand this rank's predictions over, end the block, and return the quality of all ranks'.

        ``weights``, where given, returns the weights that predicted, by global parameter name;
        exactly one rank returns each parameter. The harness rescores these weights; without them
        the result has a lower verification level (docs/trust.md).

        If the run requires checkpoints and the target is not reached, ``save`` is called on every
        rank with the folder to write to; on rank 0 it must return after all ranks have written.

        Raises:
            OutOfTurnError: if no evaluation is in progress.
        """
        if self._block is None or self._evaluation is None:
            raise OutOfTurnError("report() follows an evaluation, once")
        predictions = _message_of(self._evaluation)
        if weights is None or not (held := weights()):
            self._channel.send(predictions)
        else:
            self._hand_over(held, predictions)
        answer = self._receive()
        if isinstance(answer, Save):
            self._save_checkpoint(self.task.steps(self._block).stop, save)
            answer = self._receive()
        assert isinstance(answer, EvaluationVerdict), f"{answer} is no verdict"
        self._goes_on = answer.goes_on
        self._block = self._evaluation = None
        return answer.quality

    def _save_checkpoint(self, step: int, save: Callable[[Path], None] | None) -> None:
        """Save the checkpoint from which training goes on with ``step``."""
        if save is None:
            raise OutOfTurnError("the run requires checkpoints: report(save) takes a function")
        self._pulse.beat()
        folder = checkpoints_folder(self.work)
        folder.mkdir(exist_ok=True)
        save(begin_checkpoint(folder, step))
        if self._rank == 0:
            complete_checkpoint(folder, step)
        self._channel.send(Saved())
        self._pulse.beat()

    def _hand_over(self, weights: Mapping[str, Tensor], predictions: Predictions) -> None:
        """Send ``predictions`` with ``weights``, over the network as bytes, else as memory."""
        if self._channel.local:
            memory, size = seal_weights(weights)
            self._channel.send(dataclasses.replace(predictions, weights=size), memory)
            os.close(memory)
            return
        content = _content_of(weights)
        payload = predictions.payload + content
        self._channel.send(dataclasses.replace(predictions, payload=payload, weights=len(content)))

    def _await(self, kind: type[Answer]) -> Answer:
        answer = self._receive()
        assert isinstance(answer, kind), f"{answer} is no {kind.__name__}"
        return answer

    def _receive(self) -> Message:
        """Return the harness's answer.

        Raises:
            OutOfTurnError: if the harness refuses what this rank sent.
        """
        message = self._channel.receive()
        if isinstance(message, Refusal):
            raise OutOfTurnError(message.reason)
        return message


def seal_weights(weights: Mapping[str, Tensor]) -> tuple[int, int]:
    """Copy ``weights`` as a safetensors file into sealed memory; return descriptor and bytes."""
    content = _content_of(weights)
    return seal_bytes(content), len(content)


def _content_of(weights: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file of ``weights``."""
    from safetensors.torch import save

    return save(unshared(weights))


def unshared(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``weights`` on the CPU, in storage of their own, as safetensors requires."""
    apart, seen = {}, set[int]()
    for name, tensor in weights.items():
        held = tensor.detach().cpu().contiguous()
        storage = held.untyped_storage()
        shares = storage.data_ptr() in seen or storage.nbytes() != held.nbytes
        seen.add(storage.data_ptr())
        apart[name] = held.clone() if shares else held
    return apart


def _imported_files() -> dict[str, str]:
    """Return the files of all imported modules that have one, by name."""
    files = {
        name: vars(module).get("__file__")
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
    }
    return {name: file for name, file in files.items() if isinstance(file, str)}


def _message_of(evaluation: EvaluationData) -> Predictions:
    """Return the predictions of a rank, with adjacent chunks joined."""
    parts = sorted(evaluation.predicted, key=lambda part: part[0].start)
    chunks: list[tuple[int, ...]] = []
    for chunk, classes in parts:
        if len(classes) != chunk.stop - chunk.start:
            message = f"{len(classes)} predictions for {chunk.stop - chunk.start} samples"
            raise ValueError(message)
        if chunks and chunks[-1][1] == chunk.start:
            chunks[-1] = (chunks[-1][0], chunk.stop)
        else:
            chunks.append((chunk.start, chunk.stop))
    payload = b"".join(np.ascontiguousarray(each, np.int64).tobytes() for _, each in parts)
    return Predictions(tuple(chunks), payload)
