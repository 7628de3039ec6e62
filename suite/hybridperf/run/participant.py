"""The other nodes' side of a run on several nodes: follow the calls of node 0."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.run.consistency import hardware, stated_by_node
from hybridperf.run.ending import StopRequest, explain_crash, read_output, stop_on_signals
from hybridperf.run.folder import environment_refusal
from hybridperf.run.launcher import launch
from hybridperf.run.nodes import AGAIN, MISSED_LOOKS, POLL_S, Answer, Call, NodeStore
from hybridperf.run.processes import StoppedProcesses, end_processes, end_tree, read_pulse
from hybridperf.run.request import require_valid
from hybridperf.run.spec import RunSpec
from hybridperf.system.describe import describe
from hybridperf.tasks.data import drop_from_page_cache

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.run.request import RunRequest

__all__ = ["participate"]

_SUCCESSION_S: Final = 30  #: time for node 0 to notice the loss of this node's earlier process
_SHARED_S: Final = 30  #: time for a file of node 0 to appear on shared storage
_DELIVERY_S: Final = 10  #: time for node 0 to read why this node leaves
_OUTPUT_CHARACTERS: Final = 2**16


def participate(request: RunRequest) -> ExitCode:
    """Take part in the runs of node 0 until it ends; return its exit status.

    Raises:
        UserError: as on node 0; exit status 4 if node 0 does not appear or is lost, or if another
            process has this node rank, 5 if interrupted.
    """
    with stop_on_signals() as stop:
        problem = _problem(request)
        with _Exchange(_join(request, stop), request.nodes.rank) as exchange:
            participant = _Participant(request, stop, exchange)
            try:
                if problem is not None:
                    raise problem
                call = participant.follow()
            except UserError as error:
                exchange.leave(str(error), error.exit_code)
                raise
            except OSError as error:
                failed = environment_refusal(error, request.out)
                exchange.leave(str(failed), failed.exit_code)
                raise failed from error
            exchange.leave("", ExitCode.OK)
    if call.reason:
        raise UserError(f"node 0: {visible(call.reason)}", ExitCode(call.status or ExitCode.OK))
    return ExitCode(call.status or ExitCode.OK)


def _problem(request: RunRequest) -> UserError | None:
    """Return why this node cannot take part, which is reported to node 0 too; None if it can."""
    try:
        require_valid(request)
    except UserError as error:
        return error
    return None


def _join(request: RunRequest, stop: StopRequest) -> NodeStore:
    """Wait for the store of node 0 and register there.

    If an earlier process of this node is registered, the store belongs to a command about to end;
    wait for the store of the next one.

    Raises:
        UserError: exit status 4 if node 0 does not appear in time or the rank remains taken, 5 if
            interrupted.
    """
    nodes, patience_s = request.nodes, request.task().limits.initialisation_s
    began_s, claimed_s = time.monotonic(), None
    while True:
        with contextlib.suppress(RuntimeError):  # node 0 ended meanwhile
            if (store := NodeStore.join(nodes)) is not None:
                if store.claim(nodes.rank):
                    return store
                claimed_s = claimed_s or time.monotonic()
        if stop.signal is not None:
            reason = f"stopped by {stop.signal.name} while waiting for node 0"
            raise UserError(f"{reason}; {AGAIN}.", ExitCode.INTERRUPTED)
        now_s = time.monotonic()
        if claimed_s is not None and now_s - claimed_s > _SUCCESSION_S:
            expected, found = f"no other node {nodes.rank} at this rendezvous", "one"
            remedy = "give every node its own --node-rank"
            raise UserError(Finding("nodes.rank", expected, found, remedy), ExitCode.ENVIRONMENT)
        if now_s - began_s > patience_s:
            finding = Finding(
                "nodes.gather",
                f"node 0 at {nodes.rendezvous} within {patience_s:g} s",
                "nothing that answers there",
                "give the same command on node 0 too, and a rendezvous that this node can reach",
            )
            raise UserError(finding, ExitCode.ENVIRONMENT)
        time.sleep(POLL_S)


class _Exchange:
    """Exchange answers and calls with node 0 in a background thread.

    Neither long work on this node nor a network that blocks delays the other side.
    """

    def __init__(self, store: NodeStore, rank: int) -> None:
        self._store, self._rank = store, rank
        self._answer = Answer()
        self._call: Call | None = None
        self._heard = 0  #: exchanges so far
        self._last_heard = self._missed = 0
        self._broken = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(POLL_S)  # with a timeout: the network may block it

    @property
    def answer(self) -> Answer:
        """Return the current answer of this node."""
        return self._answer

    def say(self, **changes: object) -> None:
        """Change fields of this node's answer."""
        self._answer = dataclasses.replace(self._answer, **changes)  # type: ignore[arg-type]  # of its fields

    def leave(self, reason: str, status: int) -> None:
        """Announce that this node leaves, and wait until the answer is in the store.

        Only the first reason counts. Waits 10 s at most.
        """
        if self._answer.stage != "left":
            self.say(stage="left", reason=reason, status=status)
        heard, deadline_s = self._heard, time.monotonic() + _DELIVERY_S
        while self._heard < heard + 2 and not self._broken and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def look(self) -> Call | None:
        """Return the current call, or None before the first one; call it every ``POLL_S``.

        Raises:
            UserError: exit status 4 if node 0 is lost.
        """
        self._missed = 0 if self._heard != self._last_heard else self._missed + 1
        self._last_heard = self._heard
        if self._broken or self._missed >= MISSED_LOOKS:
            raise UserError(f"node 0 was lost; {AGAIN}.", ExitCode.ENVIRONMENT)
        return self._call

    def _run(self) -> None:
        beat = 0
        while not self._ended.wait(POLL_S if beat else 0):
            beat += 1
            try:
                self._store.answer(self._rank, dataclasses.replace(self._answer, beat=beat))
                self._call = self._store.current_call()
            except (RuntimeError, UserError, ValueError):  # torch's errors are RuntimeErrors
                self._broken = True
                return
            self._heard += 1


class _Participant:
    """Carry out the calls of node 0 on this node."""

    def __init__(self, request: RunRequest, stop: StopRequest, exchange: _Exchange) -> None:
        self._request, self._stop, self._exchange = request, stop, exchange
        self._task = request.task()
        self._rank = request.nodes.rank

    def follow(self) -> Call:
        """Carry out calls until node 0 ends the command; return the last call."""
        description = describe(nodes=self._request.nodes.count)
        self._exchange.say(
            configuration=stated_by_node(self._request, self._task),
            hardware=hardware(description),
            description=description,
        )
        while (call := self._next_call()).status is None:
            answer = self._exchange.answer
            if call.stage == "prepare" and call.turn > answer.turn:
                self._prepare(call)
            elif call.stage == "start" and (answer.turn, answer.stage) == (call.turn, "ready"):
                self._take_part(call)
        return call

    def _prepare(self, call: Call) -> None:
        """Prepare for a run: drop cached data and wait until the shared folder is visible.

        Raises:
            UserError: exit status 4 if the folder of node 0 is not visible on this node.
        """
        drop_from_page_cache(self._task.data)
        shared, deadline_s = self._request.out / call.shared, time.monotonic() + _SHARED_S
        while not _holds(shared, call.token):
            if self._next_call() != call:
                return
            if time.monotonic() > deadline_s:
                finding = Finding(
                    "nodes.storage",
                    "--out on storage that all nodes share",
                    f"nothing of node 0 in it on node {self._rank}",
                    "name a folder that every node sees: weights and checkpoints go there",
                    path=str(self._request.out),
                )
                raise UserError(finding, ExitCode.ENVIRONMENT)
        self._exchange.say(turn=call.turn, stage="ready", reason="", batches=(), output="")

    def _take_part(self, call: Call) -> None:
        """Run this node's ranks until they end or node 0 ends the run; no process remains."""
        spec = RunSpec.read(self._request.out.absolute() / call.run / "run.json")
        ranks = spec.parallel_plan().ranks
        end_processes(spec.path, self._rank)  # of an earlier process of this node
        process, now = launch(spec, spec.channel, node=self._rank), call
        stopped = StoppedProcesses(process.pid)
        try:
            while process.poll() is None and (now.turn, now.stage) == (call.turn, "start"):
                if now.status is not None:
                    break
                batches = tuple(read_pulse(spec.pulse_of(self._rank), ranks))
                self._exchange.say(batches=batches)
                stopped.look(batches)
                now = self._next_call()
            status = process.poll()
        finally:
            end_tree(process, spec.path, self._rank)
        output = read_output(spec.output_of(self._rank))
        reason = explain_crash(output, status) if status else ""
        self._exchange.say(stage="ended", reason=reason, output=output[-_OUTPUT_CHARACTERS:])

    def _next_call(self) -> Call:
        """Return the call of node 0 after ``POLL_S``.

        Raises:
            UserError: exit status 4 if node 0 is lost; 5 if this node is interrupted, which node 0
                learns before the ranks end here.
        """
        while True:
            time.sleep(POLL_S)
            if self._stop.signal is not None:
                reason = f"stopped by {self._stop.signal.name}"
                self._exchange.leave(reason, ExitCode.INTERRUPTED)
                raise UserError(f"{reason} on node {self._rank}; {AGAIN}.", ExitCode.INTERRUPTED)
            if (call := self._exchange.look()) is not None:
                return call


def _holds(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace") == text
    return False
