"""A node that follows node 0: it joins at the rendezvous, and runs its ranks of every attempt."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.run.channel import (
    FROM_NODE_0,
    Batches,
    ChannelError,
    Dismiss,
    EnergyRead,
    Greeting,
    JoinNode,
    Launch,
    Leave,
    RanksEnded,
    ReadEnergy,
    open_channel,
)
from hybridperf.run.ending import explain_crash, read_output, stop_on_signals
from hybridperf.run.files import Scratch
from hybridperf.run.folder import environment_refusal
from hybridperf.run.launcher import launch
from hybridperf.run.nodes import (
    GIVE_AGAIN,
    LOST_S,
    POLL_S,
    nodes_refusal,
    not_shared,
    token_file,
)
from hybridperf.run.processes import StoppedProcesses, end_processes, end_tree, read_pulse
from hybridperf.run.spec import RunSpec
from hybridperf.system.energy import EnergyMeter
from hybridperf.tasks.data import drop_from_page_cache
from hybridperf.tasks.schema import build
from hybridperf.untrusted import LINE_CAP_BYTES, read_bounded

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.run.channel import Channel, Message, NodeFacts
    from hybridperf.run.ending import StopRequest
    from hybridperf.run.nodes import Nodes
    from hybridperf.tasks.task import Task

__all__ = ["take_part"]

_SHARED_S: Final = 30  #: time for a file of node 0 to appear on shared storage
_CONNECTING_S: Final = 2


def take_part(nodes: Nodes, out: Path, check: Callable[[], tuple[Task, NodeFacts]]) -> ExitCode:
    """Take part in the runs of node 0 until it ends; return its exit status.

    ``check`` returns the task and the facts of this node, or raises why the node cannot take part,
    which node 0 is told too.

    Raises:
        UserError: as ``check`` and node 0; exit status 4 if node 0 does not appear or is lost, 5 if
            interrupted.
    """
    with (
        stop_on_signals() as stop,
        contextlib.closing(EnergyMeter()) as energy,
        contextlib.closing(_Follower(nodes, out.absolute(), stop, energy)) as follower,
    ):
        try:
            task, facts = check()
        except UserError as error:
            with contextlib.suppress(UserError, ChannelError):  # node 0 is not there
                follower.join(None, LOST_S)
                follower.leave(error)
            raise
        try:
            follower.join(facts, task.limits.initialisation_s)
            return follower.follow(task)
        except ChannelError as error:
            raise UserError(f"node 0 was lost; {GIVE_AGAIN}.", ExitCode.ENVIRONMENT) from error
        except UserError as error:
            follower.leave(error)
            raise
        except OSError as error:
            refusal = environment_refusal(error, out)
            follower.leave(refusal)
            raise refusal from error


class _Follower:
    """Another node's connection to node 0, whose runs it follows."""

    def __init__(self, nodes: Nodes, out: Path, stop: StopRequest, energy: EnergyMeter) -> None:
        self._nodes, self._out, self._stop, self._energy = nodes, out, stop, energy
        self._channel: Channel | None = None
        self._joined = self._left = False

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def join(self, facts: NodeFacts | None, patience_s: float) -> None:
        """Wait for node 0 and join it; ``facts`` are None if this node cannot take part.

        Raises:
            ChannelError: if node 0 is lost.
            UserError: as `take_part`; exit status 4 if this node does not see the shared folder.
        """
        deadline_s = time.monotonic() + patience_s
        while not isinstance(greeting := self._first_message(), Greeting):
            if time.monotonic() > deadline_s:
                raise nodes_refusal(
                    "gather",
                    f"node 0 at {self._nodes.rendezvous} within {patience_s:g} s",
                    "nothing that answers there",
                    "give the same command on node 0 too, and a rendezvous that this node can "
                    "reach",
                )
        shared, deadline_s = token_file(self._out, self._nodes), time.monotonic() + _SHARED_S
        while hashlib.sha256(token := _content(shared)).hexdigest() != greeting.sha256:
            if time.monotonic() > deadline_s:
                self._send(JoinNode(self._nodes.rank, token=""))
                raise not_shared(self._nodes.rank, self._out)
            self._next()
        self._send(JoinNode(self._nodes.rank, token.decode(), facts))
        self._joined = True

    def _first_message(self) -> Message | None:
        """Return the first message of node 0; None after some time without one."""
        try:
            if self._channel is None:
                self._channel = open_channel(self._nodes.rendezvous, FROM_NODE_0, _CONNECTING_S)
                self._channel.detect_loss(LOST_S)
            return self._next()
        except ChannelError:  # node 0 is not there yet
            self.close()
            time.sleep(POLL_S)
            return None

    def leave(self, error: UserError) -> None:
        """Tell node 0 why this node ends, unless it was told so before."""
        if self._channel is not None and not self._left:
            self._left = True
            with contextlib.suppress(ChannelError):
                self._channel.send(Leave(str(error), error.exit_code.value))

    def follow(self, task: Task) -> ExitCode:
        """Run this node's ranks in each run of node 0; return the exit status that node 0 states.

        Raises:
            ChannelError: if node 0 is lost.
            OSError: if the disk is full.
            UserError: as `take_part`.
        """
        while not isinstance(message := self._next(), Dismiss):
            if isinstance(message, Launch):
                spec = build(RunSpec, message.spec, path="channel")
                if spec.mode == "open":  # else node 0 hands the data over
                    drop_from_page_cache(task.data)
                spec = dataclasses.replace(spec, folder=str(self._out / message.run))
                self._send(RanksEnded(self._run(spec, message.channel)))
        return ExitCode(message.status)

    def _run(self, spec: RunSpec, channel: str) -> int:
        """Run this node's ranks until they end or node 0 ends them; no process remains.

        Return their exit status, 0 if node 0 ended them.
        """
        rank = self._nodes.rank
        end_processes(spec.path, rank)  # of an earlier process of this node
        spec.output_of(rank).unlink(missing_ok=True)  # of an earlier segment: node 0 has it
        with contextlib.closing(Scratch()) as temporary:
            scratch = temporary.path / "scratch"
            scratch.mkdir()
            return self._follow_ranks(spec, launch(spec, channel, scratch, rank))

    def _follow_ranks(self, spec: RunSpec, process: subprocess.Popen[bytes]) -> int:
        """Report the progress of this node's ranks until they end; return as `_run`."""
        rank, ranks = self._nodes.rank, spec.parallel_plan().ranks
        begun = tuple[int, ...]()
        stopped = StoppedProcesses(process.pid)
        try:
            while process.poll() is None and self._next() is None:
                if (now := tuple(read_pulse(spec.pulse_of(rank), ranks))) != begun:
                    self._send(Batches(now))
                begun = now
                stopped.look(begun)
            status = process.poll()
            if status:  # a signal to all processes may reach this one last
                self._stop.explains(explain_crash(read_output(spec.output_of(rank)), status))
            if status is not None:
                self._next()  # what node 0 asks when the run stops may have come meanwhile
            return status or 0
        finally:
            end_tree(process, spec.path, rank)

    def _next(self) -> Message | None:
        """Return the next message of node 0; None after some time without one.

        Raises:
            ChannelError: if node 0 is lost.
            UserError: exit status 5 if this node is interrupted; node 0's if it has failed.
        """
        if self._stop.signal is not None:
            reason = f"stopped by {self._stop.signal.name}"
            where = f"on node {self._nodes.rank}" if self._joined else "while waiting for node 0"
            self.leave(UserError(reason, ExitCode.INTERRUPTED))  # before the ranks end here
            raise UserError(f"{reason} {where}; {GIVE_AGAIN}.", ExitCode.INTERRUPTED)
        assert self._channel is not None, "node 0 was reached"
        self._energy.keep_up()
        message = self._channel.poll(POLL_S)
        if isinstance(message, ReadEnergy):
            energy = self._energy.read().as_table()
            self._send(EnergyRead(message.attempt, message.epoch, energy))
            return None
        if isinstance(message, Dismiss) and message.reason:
            raise UserError(f"node 0: {visible(message.reason)}", ExitCode(message.status))
        return message

    def _send(self, message: Message) -> None:
        assert self._channel is not None, "node 0 was reached"
        self._channel.send(message)


def _content(path: Path) -> bytes:
    try:
        return read_bounded(path, LINE_CAP_BYTES)
    except (OSError, ValueError):  # it does not show yet
        return b""
