"""The nodes of a run: node 0 listens at the rendezvous, and every other node connects to it once.

The other nodes follow node 0 (`node_follower`) from attempt to attempt over that one connection,
whose end is how each side learns that the other is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import secrets
import selectors
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.run.channel import (
    FROM_NODE,
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
    StopRanks,
    accept,
    listen,
)
from hybridperf.run.ending import RunOutcome, explain_crash, read_output
from hybridperf.run.local_ranks import reserve_port
from hybridperf.system.energy import Energy

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hybridperf.run.channel import Channel, Message, NodeFacts
    from hybridperf.run.ending import StopRequest
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

__all__ = [
    "GIVE_AGAIN",
    "LOST_S",
    "POLL_S",
    "NodeServer",
    "Nodes",
    "first_difference",
    "gather_nodes",
    "nodes_refusal",
    "not_shared",
    "token_file",
]

POLL_S: Final = 0.2  #: longest wait for a message before a node looks at its processes
LOST_S: Final = 20  #: without a sign of life of its machine, after which a node is lost
_STOPPING_S: Final = 15  #: time for other nodes to end their ranks, SIGTERM before SIGKILL
_FAREWELL_S: Final = 10  #: time for other nodes to read that the command has ended
GIVE_AGAIN: Final = "give the same command again on every node to continue"
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
_BUSY: Final = {
    errno.EADDRINUSE: "one that another run or program listens at",
    errno.EACCES: "one that needs more rights",
}
#: answer to a process that joins as a node that has joined already
_CROWDED: Final = Dismiss(
    ExitCode.ENVIRONMENT.value,
    "expected every node once at this rendezvous, found one twice; give every node its own "
    "--node-rank.",
)


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
    same = "give every node the same command, code and kernel"
    for remedy, own, others in (
        (same, ours.configuration, theirs.configuration),
        ("choose nodes of one kind", hardware, theirs.description),
    ):
        for key, value in own.items():
            if others.get(key) != value:
                expected = f"{key} {value!s:.{_LONGEST}} on node {node} as on node 0"
                found = f"{others.get(key)!s:.{_LONGEST}}"
                return Finding("nodes.same", expected, found or "nothing", remedy)
    return None


def nodes_refusal(rule: str, expected: str, found: str, remedy: str, path: str = "") -> UserError:
    """Return a refusal of the nodes of a run, with exit status 4."""
    status = ExitCode.ENVIRONMENT
    return UserError.of(f"nodes.{rule}", expected, found, remedy, path=path, exit_code=status)


def not_shared(node: int, out: Path) -> UserError:
    """Return the refusal of a folder ``out`` that ``node`` does not share with node 0."""
    return nodes_refusal(
        "storage",
        "--out on storage that all nodes share",
        f"nothing of node 0 in it on node {node}",
        "name a folder that every node sees: weights and checkpoints go there",
        str(out),
    )


def token_file(out: Path, nodes: Nodes) -> Path:
    """Return the file by which nodes prove to each other that they share the folder ``out``."""
    return out / f".rendezvous_{nodes.port}"


@dataclass(slots=True)
class _Peer:
    """The connection to another node, and what node 0 last heard over it."""

    channel: Channel
    node: int = 0  #: number of the node; 0 until it has joined
    facts: NodeFacts | None = None
    batches: tuple[int, ...] = ()
    energy: list[EnergyRead] = field(default_factory=list)  #: since the run was started
    running: bool = False
    status: int = 0  #: exit status of its ranks, once they have ended
    leave: Leave | None = None
    lost: bool = False
    back: bool = False  #: whether it has joined in the place of a lost node, and has no ranks yet

    def note(self, message: Message) -> None:
        """Note what the node says of itself."""
        match message:
            case Batches():
                self.batches = message.begun
            case EnergyRead():
                self.energy.append(message)
            case RanksEnded():
                self.running, self.status = False, message.status
            case Leave():
                self.leave = message


class NodeServer:
    """Node 0's connections to the other nodes; every method is a no-op if there is one node."""

    def __init__(self, nodes: Nodes, out: Path) -> None:
        self.status = ExitCode.OK  #: exit status of the other nodes once this command ends
        self.differences: list[dict[str, object]] = []  #: [node]: from node 0's description
        self._nodes, self._out = nodes, out.absolute()
        self._peers: list[_Peer] = []
        self._facts: NodeFacts | None = None  # of this node, once all nodes have joined
        self._token = secrets.token_hex(16)
        self._spec: RunSpec | None = None  # of the current run
        self._needed: Sequence[int] = range(nodes.count)  # nodes that it does not go on without
        self._dismissal: Dismiss | None = None
        self._patience_s = time.monotonic() + LOST_S
        self._listener: socket.socket | None = None
        self._reserved: socket.socket | None = None  # with the port of the current run

    def listen(self) -> None:
        """Listen at the port of the rendezvous.

        Raises:
            UserError: exit status 4 if this process cannot.
        """
        try:
            self._listener = listen(self._nodes.port)
        except OSError as error:
            raise nodes_refusal(
                "rendezvous",
                "a free port on node 0 in --rendezvous",
                f"{self._nodes.port}, {_BUSY.get(error.errno or 0, 'one that cannot be used')}",
                "wait until that ends, or give every node another port",
            ) from error
        self._listener.setblocking(False)
        self._listener.listen(self._nodes.count)  # that may come before this one is ready

    def close(self) -> None:
        """Close all connections, and give the port of the last run back."""
        if self._facts is not None and self._absent():
            token_file(self._out, self._nodes).unlink(missing_ok=True)
        for each in (self._reserved, self._listener, *(peer.channel for peer in self._peers)):
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
        if self._listener is None:
            return
        shared = token_file(self._out, self._nodes)
        try:
            self._share_token()
            self._gather(task.limits.initialisation_s, stop)
        finally:
            shared.unlink(missing_ok=True)
        self._facts = facts
        for peer in self._joined():
            assert peer.facts is not None, "the node can take part"
            if difference := first_difference(facts, peer.facts, peer.node):
                raise UserError(difference, ExitCode.USAGE)
            theirs = peer.facts.description.items()
            self.differences.append(
                {key: value for key, value in theirs if facts.description.get(key) != value}
            )

    def _share_token(self) -> None:
        """Write the token for nodes that are to join.

        Raises:
            OSError: if the shared folder cannot be written.
        """
        shared = token_file(self._out, self._nodes)
        shared.unlink(missing_ok=True)  # of a harness that was killed
        shared.touch(0o600, exist_ok=False)
        shared.write_text(self._token)

    def _gather(self, limit_s: float, stop: StopRequest) -> None:
        """Wait until every node has joined.

        Raises:
            UserError: as `preflight`.
        """
        deadline_s = time.monotonic() + limit_s
        while absent := self._absent() or [
            peer.node for peer in self._joined() if peer.facts is None
        ]:
            if stop.signal is not None:
                reason = f"stopped by {stop.signal.name} while waiting for node {absent[0]}"
                raise UserError(f"{reason}; {GIVE_AGAIN}.", ExitCode.INTERRUPTED)
            if time.monotonic() > deadline_s:
                self._patience_s = 0.0  # it has been long enough
                missing = ", ".join(map(str, absent[:8])) + (", ..." if absent[8:] else "")
                raise nodes_refusal(
                    "gather",
                    f"{self._nodes.count} nodes within {limit_s:g} s",
                    f"no answer from node {missing}",
                    "give the same command on every node, with its own --node-rank",
                )
            self._serve(POLL_S)
            self._require_able()

    def _require_able(self) -> None:
        if problem := self._problem():
            status, reason = problem
            again = "" if reason.endswith(".") else f"; {GIVE_AGAIN}."
            raise UserError(reason + again, status)

    def rendezvous(self) -> str:
        """Return HOST:PORT for the ranks of the next run, which has all nodes.

        Raises:
            UserError: exit status 4 if another node was lost; its own if it has left.
        """
        self._needed = range(self._nodes.count)
        self._serve(0)
        self._require_able()
        return self.segment_rendezvous()

    def segment_rendezvous(self) -> str:
        """Return HOST:PORT for the ranks of the next segment; ``""`` if there is one node.

        The port, a free port of node 0, stays reserved until the next segment, or the end.
        """
        for peer in self._joined():
            peer.batches, peer.status = (), 0
        if self._listener is None:
            return ""
        if self._absent():
            self._share_token()  # a lost node may come back
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = reserve_port("")
        return f"{self._nodes.host}:{self._reserved.getsockname()[1]}"

    def left(self) -> tuple[int, ...]:
        """Return the nodes that are not lost, node 0 first."""
        self._serve(0)
        return (0, *(peer.node for peer in self._joined() if not (peer.lost or peer.leave)))

    def back(self) -> tuple[int, ...]:
        """Return the nodes that were lost and have joined again, and have no ranks yet."""
        return tuple(peer.node for peer in self._joined() if peer.back and not peer.lost)

    def lost(self) -> tuple[int, ...]:
        """Return the nodes with ranks of the current run that were lost, or have left."""
        left = self.left()
        return tuple(node for node in self._needed if node not in left)

    def start(self, spec: RunSpec, channel: str) -> None:
        """Let the other nodes start their ranks of the run ``spec``, which join at ``channel``."""
        self._spec, self._needed = spec, spec.rank_nodes
        for peer in self._joined():
            peer.energy = []
            if peer.node in spec.rank_nodes:
                run = spec.path.parent.relative_to(self._out).as_posix()
                self._tell(peer, Launch(run, dataclasses.asdict(spec), channel))
                peer.running, peer.back = True, False

    def batches(self, ranks: int) -> list[tuple[int, ...]]:
        """Return the batches begun by each of ``ranks`` ranks, as other nodes last reported."""
        return [peer.batches for peer in self._peers if len(peer.batches) == ranks]

    def read_energy(self, epoch: int) -> None:
        """Let the other nodes read their counters at the end of ``epoch``, 0 at the run's start."""
        if self._spec is not None:
            self._say(ReadEnergy(self._spec.attempt, epoch))

    def energy(self) -> Iterator[tuple[int, int, Energy]]:
        """Yield node, last epoch and energy of each block, as other nodes have reported."""
        assert self._spec is not None, "a run was started"
        for peer in self._joined():
            for each in peer.energy:
                energy = Energy.from_table(each.energy)
                if energy is not None and each.epoch and each.attempt == self._spec.attempt:
                    yield peer.node, each.epoch, energy

    def trouble(self) -> tuple[RunOutcome, str] | None:
        """Return outcome and reason if another node cannot continue, else None."""
        self._serve(0)
        if (problem := self._problem()) is None:
            return None
        status, reason = problem
        interrupted = status is ExitCode.INTERRUPTED
        return RunOutcome.INTERRUPTED if interrupted else RunOutcome.CRASHED, reason.rstrip(".")

    def _problem(self) -> tuple[ExitCode, str] | None:
        """Return exit status and reason if another node cannot continue, else None.

        A node without ranks of the current run may be lost, but not interrupted.
        """
        for peer in self._joined():
            if (leave := peer.leave) is not None:
                status, reason = ExitCode(leave.status), visible(leave.reason)
                if status is ExitCode.INTERRUPTED:
                    return status, f"{reason} on node {peer.node}"
            if peer.node not in self._needed:
                continue
            if leave is not None:
                return status, f"node {peer.node}: {reason}"
            if peer.status and self._spec is not None:
                output = read_output(self._spec.output_of(peer.node))
                return ExitCode.ENVIRONMENT, explain_crash(output, peer.status)
            if peer.lost:
                return ExitCode.ENVIRONMENT, f"node {peer.node} was lost"
        return None

    def call_off(self) -> None:
        """Let the other nodes end their remaining ranks."""
        self._say(StopRanks())

    def collect(self, spec: RunSpec) -> None:
        """Wait until the other nodes have ended their ranks, and append their output to the run's.

        A node that takes more than 15 s is lost.
        """
        deadline_s = time.monotonic() + _STOPPING_S
        while any(peer.running and not peer.lost for peer in self._joined()):
            if (left_s := deadline_s - time.monotonic()) <= 0:
                break
            self._serve(left_s)
        for peer in self._joined():
            peer.lost = peer.lost or peer.running
            if peer.node in self._needed and (output := read_output(spec.output_of(peer.node))):
                with spec.output.open("a", encoding="utf-8") as file:
                    file.write(f"\n--- node {peer.node} ---\n{output}")

    def dismiss(self, status: ExitCode, reason: str = "", *, patient: bool = False) -> None:
        """Tell the other nodes to exit with ``status``, and wait until they have read it.

        ``reason`` is the error message if the command failed. If ``patient``, nodes that have not
        come yet are told too if they do within 20 s of this one.
        """
        self._dismissal = Dismiss(status.value, reason)
        for peer in self._peers:
            self._tell(peer, self._dismissal)
        now_s = time.monotonic()
        farewell_s = now_s + _FAREWELL_S
        patience_s = self._patience_s if patient else now_s
        while (now_s < farewell_s and any(not peer.lost for peer in self._joined())) or (
            now_s < patience_s
            and sum(peer.node > 0 or peer.leave is not None for peer in self._peers)
            < self._nodes.count - 1
        ):
            self._serve(POLL_S)
            now_s = time.monotonic()

    def _joined(self) -> list[_Peer]:
        return sorted((peer for peer in self._peers if peer.node), key=lambda peer: peer.node)

    def _absent(self) -> list[int]:
        there = {peer.node for peer in self._peers if not (peer.lost or peer.leave)}
        return sorted(set(range(1, self._nodes.count)) - there)

    def _say(self, message: Message) -> None:
        for peer in self._joined():
            self._tell(peer, message)

    def _tell(self, peer: _Peer, message: Message) -> None:
        with contextlib.suppress(ChannelError):  # it has ended, as the next read says
            peer.channel.send(message)

    def _serve(self, timeout_s: float) -> None:
        """Take what other nodes send, if anything does within ``timeout_s``."""
        if self._listener is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for peer in self._peers:
                if not peer.lost:
                    selector.register(peer.channel, selectors.EVENT_READ, peer)
            ready = selector.select(timeout_s)
        for key, _ in ready:
            if key.data is not None:
                self._read(key.data)
            elif (channel := accept(self._listener, FROM_NODE)) is not None:
                self._greet(_Peer(channel))

    def _greet(self, peer: _Peer) -> None:
        peer.channel.detect_loss(LOST_S)
        self._peers.append(peer)
        if self._dismissal is None and self._absent():
            self._tell(peer, Greeting(hashlib.sha256(self._token.encode()).hexdigest()))
        else:
            self._tell(peer, self._dismissal or _CROWDED)

    def _read(self, peer: _Peer) -> None:
        try:
            peer.channel.read()
            while (message := peer.channel.next_message()) is not None:
                if peer.node or self._dismissal is not None:
                    peer.note(message)
                else:
                    self._join(peer, message)
        except ChannelError:  # it has ended, or is no node
            peer.channel.close()
            peer.lost = True
            if not peer.node and self._dismissal is None:
                self._peers.remove(peer)

    def _join(self, peer: _Peer, message: Message) -> None:
        """Let a node join: before the first run, or later in the place of a lost node.

        Raises:
            ChannelError: if ``message`` is no request to join.
            UserError: exit status 4 if the node does not see the shared folder.
        """
        absent = self._absent()
        if not isinstance(message, JoinNode) or not absent:
            raise ChannelError("another message than a request to join")
        if message.node in absent and not message.token and self._facts is None:
            peer.node = message.node
            raise not_shared(message.node, self._out)
        if not secrets.compare_digest(message.token.encode(), self._token.encode()):
            raise ChannelError("another token")
        if message.node not in absent:
            self._tell(peer, _CROWDED)
        elif self._facts is None:
            peer.node, peer.facts = message.node, message.facts
        elif message.facts is None:
            raise ChannelError("a node that cannot take part")
        elif difference := first_difference(self._facts, message.facts, message.node):
            refusal = UserError(difference, ExitCode.USAGE)
            self._tell(peer, Dismiss(refusal.exit_code.value, str(refusal)))
        else:
            self._peers = [each for each in self._peers if each.node != message.node]
            peer.node, peer.facts, peer.back = message.node, message.facts, True
            if not self._absent():
                token_file(self._out, self._nodes).unlink(missing_ok=True)


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
            with contextlib.suppress(KeyboardInterrupt):  # of a user who does not want to wait
                patient = error.exit_code is not ExitCode.INTERRUPTED
                server.dismiss(error.exit_code, str(error), patient=patient)
            raise
        except BaseException as error:
            failed = isinstance(error, OSError)
            status = ExitCode.ENVIRONMENT if failed else ExitCode.INTERRUPTED
            server.dismiss(status, "it was ended")
            raise
        server.dismiss(server.status)
