"""The harness's end of the channels: it keeps the clock, the schedule, the labels and the log.

Ranks say what they have done, in the order of `TimedRun`; each message is stamped when it arrives.
What is out of turn is refused. Only this process writes the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import selectors
import socket
import time
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogWriter
from hybridperf.run.access import map_memory, seal_arrays, seal_bytes
from hybridperf.run.channel import (
    FROM_RANK,
    MODULES_CAP_BYTES,
    Channel,
    ChannelError,
    Describe,
    Evaluate,
    EvaluateInitial,
    EvaluationVerdict,
    Imported,
    InitialSamples,
    Join,
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
    accept,
    listen,
)
from hybridperf.run.evaluation import Evaluation, Shuffle, save_predictions
from hybridperf.run.files import Scratch
from hybridperf.run.models import Models, most_weights_bytes
from hybridperf.run.processes import processor_seconds
from hybridperf.system.energy import EnergyMeter
from hybridperf.system.host import network_sent_bytes
from hybridperf.system.noise import NoiseMeter
from hybridperf.tasks.data import import_packages, in_memory, load
from hybridperf.untrusted import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hybridperf.run.channel import Message
    from hybridperf.run.nodes import NodeServer
    from hybridperf.run.spec import RunSpec
    from hybridperf.system.energy import Energy
    from hybridperf.tasks.data import Splits

__all__ = ["RankServer"]

#: keys of the suite that a trainer may log; it may also log keys of its own
_OF_TRAINERS: Final = {keys.FLOAT32_MATH, keys.PARTITION, keys.WEIGHTS_INITIALIZATION}
_OF_HARNESS: Final = {
    value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)
} - _OF_TRAINERS
_RESERVED: Final = {"self", "key", "value"}  #: no names of metadata
_STATISTICS_OF_HARNESS: Final = {"throughput", "processor_s", "node_sent_bytes"}
_MOST_LINES: Final = 100_000  #: of the log, written for a trainer
_CHANNEL: Final = "channel"  #: name of the socket


class RankServer:
    """Listens for the ranks of the run ``spec``, and answers them whenever `serve` is called.

    A rank that breaks the protocol ends the run: `problem` then says why. ``peers`` serves the
    other nodes, if there are any.
    """

    def __init__(self, spec: RunSpec, peers: NodeServer | None = None) -> None:
        self.problem = ""
        self.imported: dict[str, str] = {}  #: files by names of modules, as ranks state them
        self.written_s: dict[str, float] = {}  #: by key of the log, of `time.monotonic`
        self._models = Models(spec)
        self._spec, self._task = spec, spec.task()
        self._ranks = spec.parallel_plan().ranks
        self._log: LogWriter | None = None  # opened by the first rank: others write it themselves
        self._lines = 0
        self._channels: dict[int, Channel] = {}  # by rank
        self._waiting: set[int] = set()  # ranks whose part of the current step has come
        self._phase: Literal[
            "loading",
            "evaluating first",
            "initialising",
            "training",
            "evaluating",
            "saving",
            "stopped",
        ]
        self._phase = "loading" if spec.evaluates_first else "initialising"
        self._first_step = spec.resumed or 0  # of the run, once resumed
        self._blocks = [
            block
            for block in self._task.blocks()
            if self._task.steps(block).stop > self._first_step
        ]
        before = [] if spec.resumed is None else read_log(spec.log).entries
        self._described = {_subject(entry.key, entry.metadata) for entry in before}
        self._started = any(entry.key == keys.RUN_START for entry in before)
        self._steps: dict[int, int] = {}  # by rank that has ended its training of the block
        self._paused: dict[int, int] = {}  # steps of the block, by rank that is between two parts
        self._part = range(0)  # steps that ranks were last told to train before they pause
        self._step_s = 0.0  # duration of a step, as the last part took; 0 before the first
        self._block_start_s = self._save_start_s = self._quality = 0.0
        self._saved_s = self._part_start_s = 0.0  # end of the last saving; start of the part
        self._processor_start_s: float | None = None  # at the start of the block
        self._noise: NoiseMeter | None = None  # of the run, from the start of its clock
        self._energy, self._peers = EnergyMeter(), peers
        self._evaluation: Evaluation | None = None
        # Ranks read other samples themselves; listing them may take long, so it is done before the
        # clock starts.
        self._hands_over = in_memory(self._task.data)
        self._splits = None if self._hands_over else load(self._task.data)
        import_packages(self._task.data)
        self._token = secrets.token_hex(16)
        self._temporary = Scratch()
        self._folder = self._temporary.path
        self.scratch.mkdir()
        self._selector = selectors.DefaultSelector()
        self._listeners = [socket.socket(socket.AF_UNIX)]
        self._listeners[0].bind(str(self._folder / _CHANNEL))
        if spec.nodes > 1:
            self._listeners.append(listen(0))
        for listener in self._listeners:
            listener.listen(self._ranks)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    @property
    def address(self) -> str:
        """Return the value of `CHANNEL_VARIABLE` for ranks of this machine."""
        return f"{self._token}@{self._folder / 'channel'}"

    @property
    def remote_address(self) -> str:
        """Return the value of `CHANNEL_VARIABLE` for ranks of other nodes; ``""`` without any."""
        if self._spec.nodes == 1:
            return ""
        host = self._spec.rendezvous.rpartition(":")[0]
        return f"{self._token}@{host}:{self._listeners[1].getsockname()[1]}"

    @property
    def scratch(self) -> Path:
        """Return the folder for temporary files and caches of ranks, which ends with the run."""
        return self._folder / "scratch"

    @property
    def joined(self) -> bool:
        """Return whether any rank has joined."""
        return bool(self._channels)

    @property
    def holds_model(self) -> bool:
        """Return whether the run has stopped, and ranks have handed the last weights over."""
        return self._phase == "stopped" and self._models.held

    def close(self) -> None:
        """Close the connections and the log, and release what ranks have handed over."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # channels and sockets
        self._selector.close()
        self._temporary.close()
        self._models.close()
        self._energy.close()
        if self._log is not None:
            self._log.close()

    def save_models(self) -> None:
        """Write the weights that ranks handed over, once the run has stopped and no rank is left.

        Raises:
            OSError: if the disk is full.
        """
        if self._phase == "stopped":
            self._models.save()

    def log_peers_energy(self) -> None:
        """Log what the other nodes have read, once the run has stopped and no rank is left."""
        if self._phase == "stopped" and self._peers is not None:
            for node, last, energy in self._peers.energy():
                self._log_energy(last, energy, node)

    def serve(self, timeout_s: float) -> None:
        """Answer the messages that come within ``timeout_s``."""
        self._energy.keep_up()
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = self._selector.select(left_s)
            for key, _ in ready:
                if isinstance(key.fileobj, Channel):
                    self._read(key.fileobj, key.data)
                elif (channel := accept(key.fileobj, FROM_RANK)) is not None:  # type: ignore[arg-type]  # a socket
                    self._selector.register(channel, selectors.EVENT_READ)
            if self.problem or not (ready if timeout_s == 0 else left_s):
                return

    def _read(self, channel: Channel, rank: int | None) -> None:
        """Read from ``channel``, which is of ``rank`` once that has joined."""
        try:
            channel.read()
        except ChannelError:  # it has ended, which is the supervisor's business
            self._selector.unregister(channel)
            channel.close()
            return
        try:
            while (message := channel.next_message()) is not None:
                if rank is None:
                    rank = self._join(channel, message)
                    self._selector.modify(channel, selectors.EVENT_READ, rank)
                else:
                    self._take(rank, message)
        except ChannelError as error:
            who = "a process" if rank is None else f"rank {rank}"
            self.problem = self.problem or f"{who} sent {error}"

    def _join(self, channel: Channel, message: Message) -> int:
        if not (isinstance(message, Join) and secrets.compare_digest(message.token, self._token)):
            raise ChannelError("another message than its token first")
        if not 0 <= message.rank < self._ranks or message.rank in self._channels:
            raise ChannelError(f"the number of another rank, {message.rank}")
        if self._log is None:
            self._log = LogWriter(self._spec.log, self._spec.clock)
        self._channels[message.rank] = channel
        spec = self._spec
        self._answer(
            message.rank,
            Welcome(
                task_path=spec.task_path,
                overrides=spec.overrides,
                plan=str(spec.parallel_plan()),
                seed=spec.weights_seed,
                resumed=spec.resumed,
                initial=spec.initial.real_path if spec.initial else "",
                initial_format=spec.initial.format if spec.initial else None,
                saves=spec.saves_checkpoints,
                pauses=spec.checkpoint_s > 0,
            ),
        )
        return message.rank

    def _take(self, rank: int, message: Message) -> None:
        """Carry out a message of ``rank``, or refuse it in the phase in which the run is."""
        match self._phase, message:
            case _, Describe():
                self._describe(rank, message)
            case (("training" | "evaluating"), Track()):
                self._track(rank, message)
            case "loading", EvaluateInitial():
                self._await_all(rank, self._evaluate_initial)
            case "evaluating first", Predictions(weights=None):
                self._count(rank, message)
                self._await_all(rank, self._judge_initial)
            case "initialising", Ready():
                self._await_all(rank, self._start)
            case "training", Pause() if rank not in self._steps:
                self._pause(rank, message.steps)
            case (("training" | "evaluating"), Evaluate()) if rank not in self._steps:
                self._end_training(rank, message.steps)
            case (("training" | "evaluating"), Predictions()) if rank in self._steps:
                self._count(rank, message)
                self._await_all(rank, self._conclude)
            case "stopped", Imported():
                self.imported |= _files_in(message.payload)
            case "saving", Saved():
                self._await_all(rank, self._note_checkpoint)
            case _:
                name = type(message).__name__
                self._answer(rank, Refusal(f"{name} while {self._phase}"))

    def _answer(self, rank: int, message: Message, descriptor: int | None = None) -> None:
        with contextlib.suppress(ChannelError):  # it has ended, which is the supervisor's business
            self._channels[rank].send(message, descriptor)

    def _answer_all(self, message: Message) -> None:
        for rank in self._channels:
            self._answer(rank, message)

    def _await_all(self, rank: int, proceed: Callable[[], None]) -> None:
        """Note that ``rank`` has done its part of a step, and ``proceed`` when all have."""
        if rank in self._waiting:
            raise ChannelError("its part of a step twice")
        self._waiting.add(rank)
        if len(self._waiting) == self._ranks:
            self._waiting.clear()
            proceed()

    @property
    def _logged(self) -> LogWriter:
        assert self._log is not None, "opened when a rank joined"
        return self._log

    def _state(self, key: str, value: object, metadata: Mapping[str, object]) -> None:
        """Log what the trainer states."""
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise ChannelError(f"more than {_MOST_LINES} lines for the log")
        if reserved := metadata.keys() & _RESERVED:
            raise ChannelError(f"metadata called {min(reserved)}")
        self._logged.point(key, value, **metadata)

    def _describe(self, rank: int, message: Describe) -> None:
        if message.key in _OF_HARNESS:
            raise ChannelError(f"a line that only the harness writes, {message.key}")
        # The log of a resumed run has the same entries already, but perhaps not all of them.
        if rank == 0 and _subject(message.key, message.metadata) not in self._described:
            self._state(message.key, message.value, message.metadata)

    def _track(self, rank: int, message: Track) -> None:
        if own := message.statistics.keys() & _STATISTICS_OF_HARNESS:
            raise ChannelError(f"a statistic that only the harness measures, {min(own)}")
        if rank == 0:
            self._state(keys.TRACKED_STATS, message.statistics, self._blocks[0].metadata())

    def _evaluate_initial(self) -> None:
        """Send the evaluation samples, before the clock starts."""
        self._phase = "evaluating first"
        held_out = (self._splits or load(self._task.data)).evaluation
        for channel in self._channels.values():
            channel.most_payload_bytes = held_out.labels.nbytes
        shuffle = Shuffle(len(held_out)) if self._hands_over else None
        self._evaluation = Evaluation(held_out.labels, shuffle)
        if shuffle is None:
            self._answer_all(InitialSamples())
            return
        places, descriptor = seal_arrays({"inputs": shuffle.apply(held_out.inputs)})
        self._share(InitialSamples(places["inputs"]), descriptor)

    def _judge_initial(self) -> None:
        """Log the quality of the given weights; the run starts only if it is the stated quality."""
        assert self._evaluation is not None, "it has begun"
        assert self._spec.initial is not None, "given weights are evaluated"
        quality, initial = self._evaluation.quality(), self._spec.initial
        if quality is None:
            self._answer_all(Refusal("an evaluation takes one prediction for every sample"))
            return
        if _subject(keys.INITIAL, {}) not in self._described:  # a segment may begin from them again
            self._logged.point(keys.INITIAL, {**initial.facts, "quality": quality})
        if problem := initial.mismatch(quality):
            self._answer_all(Refusal(problem))
            return
        self._phase = "initialising"
        self._answer_all(EvaluationVerdict(quality, goes_on=True))

    def _start(self) -> None:
        """Start the clock, read the samples, and hand them over."""
        self._noise = NoiseMeter()
        if not self._started:
            self._logged.stop(keys.INIT_STOP)
            self.written_s[keys.RUN_START] = time.monotonic()
            self._logged.start(keys.RUN_START)
        self._read_energy(0)
        splits = self._splits or load(self._task.data)
        labels = splits.evaluation.labels
        weights, _ = most_weights_bytes(self._spec, self._ranks)
        for channel in self._channels.values():
            channel.most_payload_bytes = labels.nbytes + (0 if channel.local else weights)
        if self._hands_over:
            self._hand_over(splits)
        else:
            self._evaluation = Evaluation(labels, None)
            self._answer_all(Start(self._spec.seed))
        self._begin_block()

    def _hand_over(self, splits: Splits) -> None:
        """Send ``splits`` without the labels to be predicted, whose samples are shuffled."""
        shuffle = Shuffle(len(splits.evaluation))
        self._evaluation = Evaluation(splits.evaluation.labels, shuffle)
        places, descriptor = seal_arrays(
            {
                "train_inputs": splits.train.inputs,
                "train_labels": splits.train.labels,
                "evaluation_inputs": shuffle.apply(splits.evaluation.inputs),
            }
        )
        start = Start(
            self._spec.seed,
            train_inputs=places["train_inputs"],
            train_labels=places["train_labels"],
            evaluation_inputs=places["evaluation_inputs"],
        )
        self._share(start, descriptor)

    def _share(self, message: InitialSamples | Start, descriptor: int) -> None:
        """Answer all ranks with sealed memory: ranks here map it, others receive a copy."""
        with memoryview(map_memory(descriptor)) as content:
            elsewhere = dataclasses.replace(message, payload=content)
            for rank, channel in self._channels.items():
                if channel.local:
                    self._answer(rank, message, descriptor)
                else:
                    self._answer(rank, elsewhere)
        os.close(descriptor)

    def _begin_block(self) -> None:
        block = self._blocks[0]
        self._phase, self._block_start_s = "training", time.monotonic()
        self._saved_s = self._block_start_s
        self._part = self._due[:0]
        self._processor_start_s = self._processor_s()
        self._sent_start_bytes = self._node_sent_bytes()
        self._steps.clear()
        self._logged.start(keys.BLOCK_START, **block.start_metadata())

    @property
    def _due(self) -> range:
        """Return the steps of the current block that are due in this segment of the run."""
        steps = self._task.steps(self._blocks[0])
        return range(max(steps.start, self._first_step), steps.stop)

    def _pause(self, rank: int, steps: int) -> None:
        """Note that ``rank`` has trained its part of the block."""
        due = self._part.stop - self._due.start
        if steps != due and self._spec.division == "closed":
            what = f"{steps} steps of the block, where the parts so far have {due}"
            self._answer(rank, Refusal(f"Pause after {what}: the open division allows that"))
            return
        self._paused[rank] = steps
        self._await_all(rank, self._end_part)

    def _end_part(self) -> None:
        """Let all ranks save a checkpoint if one is due, or else train on."""
        now_s = time.monotonic()
        if self._part:
            self._step_s = (now_s - self._part_start_s) / len(self._part)
        if self._part and now_s - self._saved_s >= self._spec.checkpoint_s:
            self._phase, self._save_start_s = "saving", now_s
            self._answer_all(Save())
        else:
            self._proceed()

    def _proceed(self) -> None:
        """Let all ranks train until the next checkpoint is due, as far as steps so far tell."""
        self._paused.clear()
        self._part_start_s = now_s = time.monotonic()
        left_s = self._spec.checkpoint_s - (now_s - self._saved_s)
        first, stop = self._part.stop, self._due.stop
        steps = math.ceil(left_s / self._step_s) if self._step_s > 0 else 1
        self._part = range(first, min(stop, first + max(1, steps)))
        self._answer_all(Proceed(len(self._part)))

    def _end_training(self, rank: int, steps: int) -> None:
        """Note the steps of ``rank``; rank 0 begins the evaluation."""
        block = self._blocks[0]
        due = len(self._due)
        if steps != due and self._spec.division == "closed":
            end = keys.progress_text(block.metadata())
            what = f"{steps} steps up to {end}, where the schedule has {due}"
            self._answer(rank, Refusal(f"Evaluate after {what}: the open division allows that"))
            return
        self._steps[rank] = steps
        if rank != 0:
            return
        self._phase = "evaluating"
        samples = self._task.training.global_batch_size * steps
        measured = {"throughput": samples / (time.monotonic() - self._block_start_s)}
        before_s, now_s = self._processor_start_s, self._processor_s()
        if before_s is not None and now_s is not None:
            measured["processor_s"] = now_s - before_s
        before_bytes, now_bytes = self._sent_start_bytes, self._node_sent_bytes()
        if before_bytes is not None and now_bytes is not None:
            measured["node_sent_bytes"] = now_bytes - before_bytes
        self._logged.point(keys.TRACKED_STATS, measured, **block.metadata())
        self._logged.start(keys.EVAL_START, **block.metadata())

    def _processor_s(self) -> float | None:
        """Return the processor time of all ranks so far; None if it is not known."""
        peers = [channel.peer() for channel in self._channels.values()]
        return None if None in peers else processor_seconds(each for each in peers if each)

    def _node_sent_bytes(self) -> int | None:
        """Return the bytes sent by this node so far; None if unknown, or without other nodes."""
        return network_sent_bytes() if self._spec.nodes > 1 else None

    def _count(self, rank: int, message: Predictions) -> None:
        assert self._evaluation is not None, "the run has started"
        if rank in self._waiting:
            raise ChannelError("its part of a step twice")
        if not self._waiting:
            self._evaluation.begin()
        payload, channel = memoryview(message.payload), self._channels[rank]
        if (size := message.weights) is None:
            memory = None
        elif channel.local:
            memory = channel.take_descriptor()
        elif 0 <= size <= len(payload):
            memory = seal_bytes(payload[len(payload) - size :])
            payload = payload[: len(payload) - size]
        else:
            raise ChannelError(f"{size} bytes of weights in {len(payload)}")
        try:
            if memory is not None and size is not None:
                self._models.take(rank, memory, size)
        except ValueError as error:
            raise ChannelError(str(error)) from error
        if problem := self._evaluation.take(message.chunks, payload):
            raise ChannelError(problem)

    def _conclude(self) -> None:
        """Count the predictions of all ranks, and let them save a checkpoint if one is due."""
        assert self._evaluation is not None, "the run has started"
        quality = self._evaluation.quality()
        if quality is None or self._phase != "evaluating":
            self._answer_all(Refusal("report() takes one prediction for every sample"))
            return
        self._quality = quality
        if self._spec.saves_checkpoints and quality < self._task.quality.target:
            self._phase, self._save_start_s = "saving", time.monotonic()
            self._answer_all(Save())
        else:
            self._decide()

    def _note_checkpoint(self) -> None:
        """Log the checkpoint: of an evaluation before it, so that each logged one has its own."""
        seconds = {"seconds": time.monotonic() - self._save_start_s}
        if self._steps:
            metadata, step = self._blocks[0].metadata(), self._due.stop
            self._logged.point(keys.CHECKPOINT, seconds, **metadata, step=step)
            self._decide()
            return
        steps = min(self._paused.values())
        self._logged.point(keys.CHECKPOINT, seconds, step=self._part.stop, steps=steps)
        self._phase, self._saved_s = "training", time.monotonic()
        self._proceed()

    def _decide(self) -> None:
        """Log the evaluation, and whether the run goes on or stops."""
        block, log = self._blocks.pop(0), self._logged
        reached = self._quality >= self._task.quality.target
        goes_on = not reached and bool(self._blocks)
        assert self._evaluation is not None, "the run has started"
        if handed_over := self._models.conclude(block.last, self._evaluation.predictions()):
            log.point(keys.WEIGHTS, handed_over, **block.metadata())
        log.stop(keys.EVAL_STOP, **block.metadata())
        log.point(keys.EVAL_ACCURACY, self._quality, **block.metadata())
        steps = min(self._steps.values())
        samples = steps * self._task.training.global_batch_size
        log.stop(keys.BLOCK_STOP, **block.stop_metadata(), steps=steps, samples=samples)
        if goes_on:
            self._log_energy(block.last, self._read_energy(block.last))
            self._begin_block()
        else:
            self._phase = "stopped"
            for channel in self._channels.values():
                channel.most_payload_bytes = MODULES_CAP_BYTES
            self.written_s[keys.RUN_STOP] = time.monotonic()
            log.stop(keys.RUN_STOP, status="success" if reached else "aborted")
            self._log_energy(block.last, self._read_energy(block.last))
            if self._noise:
                log.point(keys.NOISE, self._noise.read().as_table(), interval="run")
            save_predictions(self._spec.timed_predictions, self._evaluation.predictions())
        self._answer_all(EvaluationVerdict(self._quality, goes_on))

    def _read_energy(self, last: int) -> Energy:
        """Return this node's energy since the last reading; the other nodes read theirs too."""
        if self._peers is not None:
            self._peers.read_energy(last)
        return self._energy.read()

    def _log_energy(self, last: int, energy: Energy, node: int = 0) -> None:
        """Log the energy of ``node`` in the block whose last epoch or sample is ``last``."""
        where = {"node": node, "nodes": self._spec.nodes, **self._task.evaluation.metadata(last)}
        self._logged.point(keys.ENERGY, energy.as_table(), **where)


def _files_in(payload: bytes) -> dict[str, str]:
    """Return what a rank states as files by names of modules.

    Raises:
        ChannelError: if it is something else.
    """
    try:
        files = parse_object(payload.decode())
    except ValueError as error:
        raise ChannelError(f"what is no list of modules: {error}") from error
    return {name: file for name, file in files.items() if isinstance(file, str)}


def _subject(key: str, metadata: Mapping[str, object]) -> tuple[str, str]:
    """Return the subject of a fact that a trainer states: its key, and the tensor it is about."""
    return key, str(metadata.get("tensor"))
