"""The nodes of a run: node 0 listens at the rendezvous, and every other node connects to it once.

The other nodes follow node 0 from attempt to attempt over that one connection, whose end is how
each side learns that the other is lost.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.run.channel import (
    FROM_NODE,
    FROM_NODE_0,
    Batches,
    Channel,
    ChannelError,
    Dismiss,
    Greeting,
    JoinNode,
    Launch,
    Leave,
    Prepare,
    Prepared,
    RanksEnded,
    StopRanks,
    accept,
    listen,
    open_channel,
)
from hybridperf.run.descendants import StoppedProcesses
from hybridperf.run.ending import Outcome, explain_crash, read_output
from hybridperf.run.folder import environment_refusal
from hybridperf.run.launcher import launch
from hybridperf.run.local_ranks import reserve_port
from hybridperf.run.processes import end_processes, end_tree
from hybridperf.run.provenance import file_sha256
from hybridperf.run.pulse import read_pulse
from hybridperf.run.signals import stop_on_signals
from hybridperf.run.spec import RunSpec
from hybridperf.tasks.data import drop_from_page_cache
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, OUTPUT_CAP_BYTES, read_bounded

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hybridperf.run.channel import Message, NodeFacts
    from hybridperf.run.signals import StopRequest
    from hybridperf.tasks.task import Task

__all__ = ["NodeServer", "Nodes", "first_difference", "gather_nodes", "take_part"]

_POLL_S: Final = 0.2
_LOST_S: Final = 20  #: without a sign of life of its machine, after which a node is lost
_STOPPING_S: Final = 15  #: time for other nodes to end their ranks, SIGTERM before SIGKILL
_FAREWELL_S: Final = 10  #: time for other nodes to read that the command has ended
_SHARED_S: Final = 30  #: time for a file of node 0 to appear on shared storage
_CONNECTING_S: Final = 2
_AGAIN: Final = "give the same command again on every node to continue"
_SLURM_RANK: Final = "SLURM_NODEID"
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?\]")
_MOST_PORTS: Final = 2**16
#: fields of a system description that must be the same on all nodes
_HARDWARE: Final = (
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_memory_capacity",
    "host_processor_model_name",
    "framework",
)
_LONGEST: Final = 80  #: characters of a value in a message
_BUSY_PORT: Final = {
    errno.EADDRINUSE: "one that another run or program listens at",
    errno.EACCES: "one that needs more rights",
}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The number of machines that train together, and which one this is; node 0 supervises."""

    count: int = 1
    rank: int = 0  #: of this machine, counted from 0
    rendezvous: str = ""  #: HOST:PORT on node 0; empty if there is one node

    @classmethod
    def named(cls, count: int | None, rank: str | None, rendezvous: str | None) -> Nodes:
        """Parse ``--nodes``, ``--node-rank`` and ``--rendezvous``; None is an option not given.

        Raises:
            UserError: exit status 2 if a value is invalid or the options contradict each other.
        """
        if count is None:
            given = {"--node-rank": rank, "--rendezvous": rendezvous}
            for option, value in given.items():
                if value is not None:
                    found, remedy = f"{option} alone", f"add --nodes or drop {option}"
                    raise UserError.of("request.nodes", "--nodes N", found, remedy)
            return cls()
        number = 0 if count == 1 and rank is None else _rank(count, rank)
        return cls(count, number, "" if count == 1 else _rendezvous(rendezvous))

    @property
    def host(self) -> str:
        """Return the host of the rendezvous; an IPv6 address is without brackets."""
        return self.rendezvous.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Return the port of the rendezvous."""
        return int(self.rendezvous.rpartition(":")[2])


def _rank(count: int, given: str | None) -> int:
    text = os.environ.get(_SLURM_RANK) if given is None else given
    if text is None:
        expected, remedy = f"--node-rank or the variable {_SLURM_RANK}", "name this node with"
        raise UserError.of("request.nodes", expected, "neither", f"{remedy} --node-rank K")
    if not (text.isascii() and text.isdigit() and int(text) < count):
        expected = f"a {_SLURM_RANK if given is None else '--node-rank'} from 0 to {count - 1}"
        remedy = "number the nodes from 0, each once"
        raise UserError.of("request.nodes", expected, repr(text), remedy)
    return int(text)


def _rendezvous(text: str | None) -> str:
    expected, remedy = "--rendezvous HOST:PORT", "name node 0 and a port that is free there"
    if text is None:
        expected += " with more than one node"
        raise UserError.of("request.nodes", expected, "none", remedy)
    host, _, port = text.rpartition(":")
    if ":" in host and not host.startswith("["):
        remedy = "write an IPv6 address in brackets, as in [fd00::1]:29500"
    if not (_HOST.fullmatch(host) and port.isascii() and port.isdigit()):
        raise UserError.of("request.nodes", expected, repr(text), remedy)
    if not 0 < int(port) < _MOST_PORTS:
        raise UserError.of("request.nodes", "a port from 1 to 65535", repr(port), remedy)
    return text


def first_difference(ours: NodeFacts, theirs: NodeFacts, node: int) -> Finding | None:
    """Return the first difference between node 0 (``ours``) and ``node`` (``theirs``), if any."""
    hardware = {key: ours.description[key] for key in _HARDWARE}
    for remedy, own, others in (
        ("give every node the same command and code", ours.configuration, theirs.configuration),
        ("choose nodes of one kind", hardware, theirs.description),
    ):
        for key, value in own.items():
            if others.get(key) != value:
                expected = f"{key} {value!s:.{_LONGEST}} on node {node} as on node 0"
                found = f"{others.get(key)!s:.{_LONGEST}}"
                return Finding("nodes.same", expected, found or "nothing", remedy)
    return None


def _token_file(out: Path, nodes: Nodes) -> Path:
    """Return the file by which nodes prove to each other that they share the folder ``out``."""
    return out / f".rendezvous_{nodes.port}"


def _not_shared(node: int, out: Path) -> UserError:
    return UserError.of(
        "nodes.storage",
        "--out on storage that all nodes share",
        f"nothing of node 0 in it on node {node}",
        "name a folder that every node sees: weights and checkpoints go there",
        path=str(out),
        exit_code=ExitCode.ENVIRONMENT,
    )


@dataclass(slots=True)
class _OtherNode:
    """Another node, as node 0 last heard of it."""

    channel: Channel
    facts: NodeFacts | None
    stage: Literal["joined", "ready", "running", "ended"] = "joined"
    batches: tuple[int, ...] = ()
    failure: str = ""  #: why its ranks failed
    output: str = ""  #: the end of what its ranks printed, once they have ended
    leave: Leave | None = None
    lost: bool = False


class NodeServer:
    """Node 0's connections to the other nodes; every method is a no-op if there is one node."""

    def __init__(self, nodes: Nodes, out: Path) -> None:
        self.status = ExitCode.OK  #: exit status of the other nodes once this command ends
        self.differences: list[dict[str, object]] = []  #: [node]: from node 0's description
        self._nodes, self._out = nodes, out.absolute()
        self._absent = set(range(1, nodes.count))  # that may still come
        self._others: dict[int, _OtherNode] = {}
        self._channels: dict[Channel, int] = {}  # with the node, 0 before it has joined
        self._token = secrets.token_hex(16)
        self._dismissal: Dismiss | None = None
        self._reserved: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._listens_s = time.monotonic()

    def listen(self) -> None:
        """Listen at the port of the rendezvous.

        Raises:
            UserError: exit status 4 if this process cannot.
        """
        try:
            self._listener = listen(self._nodes.port)
        except OSError as error:
            problem = _BUSY_PORT.get(error.errno or 0, "one that cannot be listened at")
            raise UserError.of(
                "nodes.rendezvous",
                "a free port on node 0 in --rendezvous",
                f"{self._nodes.port}, {problem}",
                "wait until that ends, or give every node another port",
                exit_code=ExitCode.ENVIRONMENT,
            ) from error
        self._listener.setblocking(False)

    def close(self) -> None:
        """Close all connections, and give the port of the last run back."""
        for each in (self._reserved, self._listener, *self._channels):
            if each is not None:
                each.close()

    def preflight(self, facts: NodeFacts, task: Task, stop: StopRequest) -> None:
        """Wait for all nodes, and check that request, code, data and hardware are the same.

        Raises:
            OSError: if the shared folder cannot be written.
            UserError: exit status 2 if they differ, 4 if a node does not join in time or does not
                see the shared folder, 5 if interrupted; a node's own exit status if it cannot take
                part.
        """
        if not self._absent:
            return
        shared = _token_file(self._out, self._nodes)
        shared.unlink(missing_ok=True)  # of a harness that was killed
        try:
            shared.touch(0o600, exist_ok=False)
            shared.write_text(self._token)
            self._await(lambda other: other.facts is not None, task, stop)
        finally:
            shared.unlink(missing_ok=True)
        for node, other in sorted(self._others.items()):
            assert other.facts is not None, "awaited"
            if difference := first_difference(facts, other.facts, node):
                raise UserError(difference, ExitCode.USAGE)
            self.differences.append(
                {
                    key: value
                    for key, value in other.facts.description.items()
                    if facts.description.get(key) != value
                }
            )

    def prepare(self, task: Task, stop: StopRequest) -> None:
        """Let every node drop cached data.

        Raises:
            UserError: as `preflight`.
        """
        for other in self._others.values():
            other.stage = "joined"
        self._say(Prepare())
        self._await(lambda other: other.stage == "ready", task, stop)

    def rendezvous(self) -> str:
        """Return HOST:PORT for the ranks of the next run, with a free port of node 0.

        The port stays reserved until the next run, or the end.
        """
        if not self._others:
            return ""
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = reserve_port("")
        return f"{self._nodes.host}:{self._reserved.getsockname()[1]}"

    def start(self, spec: RunSpec, channel: str) -> None:
        """Let the other nodes start their ranks of the run ``spec``, which join at ``channel``."""
        if self._others:
            run = spec.path.parent.relative_to(self._out).as_posix()
            self._say(Launch(run, file_sha256(spec.path), channel))
        for other in self._others.values():
            other.stage, other.batches, other.failure, other.output = "running", (), "", ""

    def batches(self, ranks: int) -> list[tuple[int, ...]]:
        """Return the batches begun by each of ``ranks`` ranks, as other nodes last reported."""
        return [each.batches for each in self._others.values() if len(each.batches) == ranks]

    def trouble(self) -> tuple[Outcome, str] | None:
        """Return outcome and reason if another node cannot continue, else None."""
        self._serve(0)
        for node, other in sorted(self._others.items()):
            if (leave := other.leave) is not None:
                if ExitCode(leave.status) is ExitCode.INTERRUPTED:
                    return Outcome.INTERRUPTED, f"{visible(leave.reason)} on node {node}"
                return Outcome.CRASHED, f"node {node}: {visible(leave.reason).rstrip('.')}"
            if other.failure:
                return Outcome.CRASHED, visible(other.failure)
            if other.lost:
                return Outcome.CRASHED, f"node {node} was lost"
        return None

    def call_off(self) -> None:
        """Let the other nodes end their remaining ranks."""
        self._say(StopRanks())

    def collect(self, spec: RunSpec) -> None:
        """Wait until the other nodes have ended their ranks, and append their output to the run's.

        A node that takes more than 15 s is lost.
        """
        deadline_s = time.monotonic() + _STOPPING_S
        while any(each.stage == "running" and not each.lost for each in self._others.values()):
            if (left_s := deadline_s - time.monotonic()) <= 0:
                break
            self._serve(left_s)
        for node, other in sorted(self._others.items()):
            other.lost = other.lost or other.stage == "running"
            if other.output:
                with spec.output.open("a", encoding="utf-8") as output:
                    output.write(f"\n--- node {node} ---\n{other.output}")

    def dismiss(self, status: ExitCode, reason: str = "", *, patient: bool = False) -> None:
        """Tell the other nodes to exit with ``status``, and wait until they have read it.

        ``reason`` is the error message if the command failed. Nodes that have not joined yet are
        told too, if ``patient``, when they come within 20 s of the time when this one came.
        """
        self._dismissal = Dismiss(status.value, reason)
        for channel in list(self._channels):
            self._tell(channel, self._dismissal)
        now_s = time.monotonic()
        farewell_s = now_s + _FAREWELL_S
        patience_s = self._listens_s + _LOST_S if patient else now_s
        while (any(self._channels.values()) and now_s < farewell_s) or (
            self._absent and now_s < patience_s
        ):
            self._serve(_POLL_S)
            now_s = time.monotonic()

    def _say(self, message: Message) -> None:
        for channel, node in list(self._channels.items()):
            if node:
                self._tell(channel, message)

    def _tell(self, channel: Channel, message: Message) -> None:
        with contextlib.suppress(ChannelError):  # it has ended, as the next read says
            channel.send(message)
            if message is self._dismissal and not self._channels[channel] and self._absent:
                self._absent.pop()  # this one, whichever it is

    def _serve(self, timeout_s: float) -> None:
        """Take what other nodes send, if anything does within ``timeout_s``."""
        if self._listener is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for channel in self._channels:
                selector.register(channel, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(timeout_s)]
        for each in ready:
            if isinstance(each, Channel):
                self._read(each)
            elif (joining := accept(self._listener, FROM_NODE)) is not None:
                self._greet(joining)

    def _greet(self, channel: Channel) -> None:
        channel.detect_loss(_LOST_S)
        self._channels[channel] = 0
        if self._dismissal is not None or not self._absent:
            self._tell(channel, self._dismissal or self._full())
        else:
            self._tell(channel, Greeting(hashlib.sha256(self._token.encode()).hexdigest()))

    def _full(self) -> Dismiss:
        """Return the answer to a process that joins as a node which has joined already."""
        count = self._nodes.count
        finding = Finding(
            "nodes.rank",
            f"{count} nodes at this rendezvous",
            "one more, or one twice",
            "give every node its own --node-rank",
        )
        return Dismiss(ExitCode.ENVIRONMENT.value, finding.sentence)

    def _read(self, channel: Channel) -> None:
        try:
            channel.read()
            while (message := channel.next_message()) is not None:
                if node := self._channels[channel]:
                    _note(self._others[node], message)
                else:
                    self._join(channel, message)
        except ChannelError:  # it has ended, or speaks another language: the same to this node
            if node := self._channels.pop(channel):
                self._others[node].lost = True
            channel.close()

    def _join(self, channel: Channel, message: Message) -> None:
        """Admit a node.

        Raises:
            ChannelError: if ``message`` is no request to join.
            UserError: exit status 4 if the node does not see the shared folder.
        """
        if not isinstance(message, JoinNode) or not 0 < message.node < self._nodes.count:
            raise ChannelError("another message than its number first")
        if self._dismissal is not None:
            return
        if message.node not in self._absent:
            self._tell(channel, self._full())
        elif not message.token:
            raise _not_shared(message.node, self._out)
        elif secrets.compare_digest(message.token.encode(), self._token.encode()):
            channel.most_payload_bytes = OUTPUT_CAP_BYTES
            self._absent.remove(message.node)
            self._channels[channel] = message.node
            self._others[message.node] = _OtherNode(channel, message.facts)
        else:
            raise ChannelError("another token")

    def _await(self, holds: Callable[[_OtherNode], bool], task: Task, stop: StopRequest) -> None:
        """Wait until every node has joined and ``holds``.

        Raises:
            UserError: as `preflight`.
        """
        limit_s = task.limits.initialisation_s
        deadline_s = time.monotonic() + limit_s
        while True:
            for node, other in sorted(self._others.items()):
                _require_present(node, other)
            late = [node for node, other in sorted(self._others.items()) if not holds(other)]
            absent = sorted(self._absent) or late
            if not absent:
                return
            if stop.signal is not None:
                reason = f"stopped by {stop.signal.name} while waiting for node {absent[0]}"
                raise UserError(f"{reason}; {_AGAIN}.", ExitCode.INTERRUPTED)
            if time.monotonic() > deadline_s:
                self._absent.clear()  # it is not worth more patience
                raise _absence(self._nodes.count, absent, limit_s)
            self._serve(_POLL_S)


def _note(other: _OtherNode, message: Message) -> None:
    """Note what another node says of itself."""
    match message:
        case Prepared():
            other.stage = "ready"
        case Batches():
            other.batches = message.begun
        case RanksEnded():
            other.stage, other.failure = "ended", message.reason
            other.output = message.payload.decode(errors="replace")
        case Leave():
            other.leave = message
        case _:
            raise ChannelError("its number twice")


def _require_present(node: int, other: _OtherNode) -> None:
    if (leave := other.leave) is not None:
        reason, status = visible(leave.reason), ExitCode(leave.status)
        if status is ExitCode.INTERRUPTED:
            raise UserError(f"{reason} on node {node}; {_AGAIN}.", status)
        raise UserError(f"node {node}: {reason}", status)
    if other.lost:
        raise UserError(f"node {node} was lost; {_AGAIN}.", ExitCode.ENVIRONMENT)


def _absence(count: int, absent: list[int], limit_s: float) -> UserError:
    missing = ", ".join(map(str, absent[:8])) + (", ..." if absent[8:] else "")
    return UserError.of(
        "nodes.gather",
        f"{count} nodes within {limit_s:g} s",
        f"no answer from node {missing}",
        "give the same command on every node, with its own --node-rank",
        exit_code=ExitCode.ENVIRONMENT,
    )


@contextlib.contextmanager
def gather_nodes(nodes: Nodes, out: Path) -> Iterator[NodeServer]:
    """Serve the other nodes as node 0, and dismiss them however the body ends.

    Raises:
        UserError: exit status 4 if the port of the rendezvous is not free.
    """
    with contextlib.closing(NodeServer(nodes, out)) as server:
        if nodes.count == 1:
            yield server
            return
        server.listen()
        try:
            yield server
        except UserError as error:
            with contextlib.suppress(KeyboardInterrupt):  # of who does not want to wait
                patient = error.exit_code is not ExitCode.INTERRUPTED
                server.dismiss(error.exit_code, str(error), patient=patient)
            raise
        except BaseException as error:
            failed = isinstance(error, OSError)
            status = ExitCode.ENVIRONMENT if failed else ExitCode.INTERRUPTED
            server.dismiss(status, "it was ended")
            raise
        server.dismiss(server.status)


def take_part(nodes: Nodes, out: Path, check: Callable[[], tuple[Task, NodeFacts]]) -> ExitCode:
    """Take part in the runs of node 0 until it ends; return its exit status.

    ``check`` returns the task and what this node is, or raises why it cannot take part, which
    node 0 is told too.

    Raises:
        UserError: as ``check`` and node 0; exit status 4 if node 0 does not appear or is lost, 5 if
            interrupted.
    """
    with (
        stop_on_signals() as stop,
        contextlib.closing(_Follower(nodes, out.absolute(), stop)) as follower,
    ):
        try:
            task, facts = check()
        except UserError as error:
            with contextlib.suppress(UserError):  # it is not there
                follower.join(None, _LOST_S)
                follower.leave(error)
            raise
        try:
            follower.join(facts, task.limits.initialisation_s)
            return follower.follow(task)
        except UserError as error:
            follower.leave(error)
            raise
        except OSError as error:
            refusal = environment_refusal(error, out)
            follower.leave(refusal)
            raise refusal from error


class _Follower:
    """Another node's connection to node 0, whose runs it follows."""

    def __init__(self, nodes: Nodes, out: Path, stop: StopRequest) -> None:
        self._nodes, self._out, self._stop = nodes, out, stop
        self._channel: Channel | None = None
        self._joined = self._left = False

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def join(self, facts: NodeFacts | None, patience_s: float) -> None:
        """Wait for node 0 and join it; ``facts`` are None if this node cannot take part.

        Raises:
            UserError: as `take_part`; exit status 4 if this node does not see the shared folder.
        """
        deadline_s = time.monotonic() + patience_s
        while not isinstance(message := self._first_message(), Greeting):
            if time.monotonic() > deadline_s:
                raise UserError.of(
                    "nodes.gather",
                    f"node 0 at {self._nodes.rendezvous} within {patience_s:g} s",
                    "nothing that answers there",
                    "give the same command on node 0 too, and a rendezvous that this node can "
                    "reach",
                    exit_code=ExitCode.ENVIRONMENT,
                )
        token = self._shared(_token_file(self._out, self._nodes), message.sha256)
        assert token is not None, "nothing but a dismissal comes before"
        self._send(JoinNode(self._nodes.rank, token.decode(), facts))
        self._joined = True

    def leave(self, error: UserError) -> None:
        """Tell node 0 why this node ends, unless it was told so before."""
        if self._channel is not None and self._joined and not self._left:
            self._left = True
            with contextlib.suppress(ChannelError):  # it has ended
                self._channel.send(Leave(str(error), error.exit_code.value))

    def follow(self, task: Task) -> ExitCode:
        """Do what node 0 says until it ends the command; return the exit status that it names.

        Raises:
            OSError: if the disk is full.
            UserError: as `take_part`.
        """
        while True:
            match self._next():
                case Prepare():
                    drop_from_page_cache(task.data)
                    self._send(Prepared())
                case Launch() as order:
                    self._run(order)
                case Dismiss() as dismissal:
                    return ExitCode(dismissal.status)

    def _run(self, order: Launch) -> None:
        """Run this node's ranks until they end or node 0 ends them; no process remains."""
        path, rank = self._out / order.run / "run.json", self._nodes.rank
        if self._shared(path, order.sha256) is None:  # node 0 has ended the run meanwhile
            self._send(RanksEnded(""))
            return
        spec = RunSpec.read(path)
        ranks = spec.parallel_plan().ranks
        end_processes(path, rank)  # of an earlier process of this node
        process, begun = launch(spec, order.channel, node=rank), tuple[int, ...]()
        stopped = StoppedProcesses(process.pid)
        try:
            while process.poll() is None and self._next() is None:
                if (now := tuple(read_pulse(spec.pulse_of(rank), ranks))) != begun:
                    self._send(Batches(now))
                begun = now
                stopped.look(begun)
            status = process.poll()
        finally:
            end_tree(process, path, rank)
        output = read_output(spec.output_of(rank))
        reason = explain_crash(output, status) if status else ""
        self._send(RanksEnded(reason, output.encode()[-OUTPUT_CAP_BYTES:]))

    def _shared(self, path: Path, sha256: str) -> bytes | None:
        """Wait for a file of node 0 to show here; return its content.

        Returns None if node 0 says anything else meanwhile.

        Raises:
            UserError: as `take_part`; exit status 4 if the file does not show in time.
        """
        deadline_s = time.monotonic() + _SHARED_S
        while True:
            with contextlib.suppress(OSError, ValueError):
                content = read_bounded(path, DOCUMENT_CAP_BYTES)
                if hashlib.sha256(content).hexdigest() == sha256:
                    return content
            if time.monotonic() > deadline_s:
                if not self._joined:
                    self._send(JoinNode(self._nodes.rank, token=""))
                raise _not_shared(self._nodes.rank, self._out)
            if self._next() is not None:
                return None

    def _first_message(self) -> Message | None:
        """Return the first message of node 0; None after some time without any.

        Raises:
            UserError: exit status 5 if this node is interrupted, or node 0's if it has refused.
        """
        self._require_no_stop("while waiting for node 0")
        try:
            if self._channel is None:
                self._channel = open_channel(self._nodes.rendezvous, FROM_NODE_0, _CONNECTING_S)
                self._channel.detect_loss(_LOST_S)
            return _not_refused(self._channel.poll(_POLL_S))
        except ChannelError:  # not there yet, or another one that has ended
            self.close()
            time.sleep(_POLL_S)
            return None

    def _next(self) -> Message | None:
        """Return the next message of node 0; None after some time without any.

        Raises:
            UserError: as `take_part`.
        """
        assert self._channel is not None, "joined"
        self._require_no_stop(f"on node {self._nodes.rank}")
        try:
            return _not_refused(self._channel.poll(_POLL_S))
        except ChannelError as error:
            raise _lost_node_0() from error

    def _require_no_stop(self, where: str) -> None:
        if self._stop.signal is not None:
            reason = f"stopped by {self._stop.signal.name}"
            self.leave(UserError(reason, ExitCode.INTERRUPTED))  # before the ranks end here
            raise UserError(f"{reason} {where}; {_AGAIN}.", ExitCode.INTERRUPTED)

    def _send(self, message: Message) -> None:
        assert self._channel is not None, "joined"
        try:
            self._channel.send(message)
        except ChannelError as error:
            raise _lost_node_0() from error


def _not_refused(message: Message | None) -> Message | None:
    """Return ``message`` of node 0, unless it says that node 0 has failed."""
    if isinstance(message, Dismiss) and message.reason:
        raise UserError(f"node 0: {visible(message.reason)}", ExitCode(message.status))
    return message


def _lost_node_0() -> UserError:
    return UserError(f"node 0 was lost; {_AGAIN}.", ExitCode.ENVIRONMENT)
