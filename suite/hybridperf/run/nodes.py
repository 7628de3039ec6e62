"""The nodes of a run and the store through which they communicate: a TCPStore hosted by node 0.

Node 0 publishes its current `Call` there, every other node its current `Answer`; each message
replaces the previous one of the same node. Messages are JSON and are validated when read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.run.files import canonical_json
from hybridperf.tasks.schema import build
from hybridperf.untrusted import parse_object

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public in its docs


__all__ = ["AGAIN", "MISSED_LOOKS", "POLL_S", "Answer", "Call", "NodeStore", "Nodes"]

POLL_S: Final = 0.2  #: between two reads of the store
#: Consecutive reads without a new heartbeat after which a node counts as lost, about 20 s. Reads
#: are counted instead of seconds, so that suspending a machine does not make its peers seem lost.
MISSED_LOOKS: Final = 100
AGAIN: Final = "give the same command again on every node to continue"
_TIMEOUT: Final = timedelta(seconds=30)
_LOG_LEVEL: Final = "TORCH_CPP_LOG_LEVEL"
Status = Literal[0, 1, 2, 3, 4, 5]  # the values of ExitCode
_SLURM_RANK: Final = "SLURM_NODEID"
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?\]")
_MOST_PORTS: Final = 2**16


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
                    raise _refuse("--nodes N", f"{option} alone", f"add --nodes or drop {option}")
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

    @property
    def others(self) -> range:
        """Return all nodes but node 0."""
        return range(1, self.count)


def _rank(count: int, given: str | None) -> int:
    text = os.environ.get(_SLURM_RANK) if given is None else given
    if text is None:
        remedy = "name this node with --node-rank K"
        raise _refuse(f"--node-rank or the variable {_SLURM_RANK}", "neither", remedy)
    if not (text.isascii() and text.isdigit() and int(text) < count):
        option = _SLURM_RANK if given is None else "--node-rank"
        remedy = "number the nodes from 0, each once"
        raise _refuse(f"a {option} from 0 to {count - 1}", repr(text), remedy)
    return int(text)


def _rendezvous(text: str | None) -> str:
    expected, remedy = "--rendezvous HOST:PORT", "name node 0 and a port that is free there"
    if text is None:
        raise _refuse(f"{expected} with more than one node", "none", remedy)
    host, _, port = text.rpartition(":")
    if ":" in host and not host.startswith("["):
        remedy = "write an IPv6 address in brackets, as in [fd00::1]:29500"
    if not (_HOST.fullmatch(host) and port.isascii() and port.isdigit()):
        raise _refuse(expected, repr(text), remedy)
    if not 0 < int(port) < _MOST_PORTS:
        raise _refuse("a port from 1 to 65535", repr(port), remedy)
    return text


def _refuse(expected: str, found: str, remedy: str) -> UserError:
    return UserError(Finding("request.nodes", expected, found, remedy), ExitCode.USAGE)


@dataclass(frozen=True, slots=True)
class Call:
    """The instruction of node 0 to all other nodes."""

    turn: int = 0  #: number of runs prepared so far
    stage: Literal["preflight", "prepare", "start", "stop"] = "preflight"
    run: str = ""  #: folder of the run, relative to --out
    shared: str = ""  #: file written by node 0 to test shared storage, relative to --out
    token: str = ""  #: content of that file
    status: Status | None = None  #: exit status, once all runs have ended
    reason: str = ""  #: error message, if node 0 failed


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a node other than node 0."""

    beat: int = 0  #: heartbeat: incremented as long as the node's process runs
    turn: int = 0
    stage: Literal["joined", "ready", "ended", "left"] = "joined"
    reason: str = ""  #: why its ranks failed, or why it left
    status: Status = 0  #: exit status with which it left
    batches: tuple[int, ...] = ()  #: [rank]: batches begun so far; 0 for ranks of other nodes
    output: str = ""  #: end of its ranks' output, once they have ended
    configuration: dict[str, object] = field(default_factory=dict)
    hardware: dict[str, object] = field(default_factory=dict)
    description: dict[str, object] = field(default_factory=dict)


Message = TypeVar("Message", Call, Answer)


class NodeStore:
    """The store of calls and answers, opened by `host` on node 0 and by `join` elsewhere."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store

    @classmethod
    def host(cls, nodes: Nodes) -> NodeStore:
        """Open the store on this machine, at the port of the rendezvous.

        Raises:
            UserError: exit status 4 if this process cannot listen on the port.
        """
        try:
            store = _tcp_store("localhost", nodes.port, is_master=True)
        except RuntimeError as error:
            code = re.search(r"name: (E[A-Z]+)", str(error))
            problem = {
                "EADDRINUSE": "one that another run or program listens at",
                "EACCES": "one that needs more rights",
            }.get(code[1] if code else "", "one that cannot be listened at")
            finding = Finding(
                "nodes.rendezvous",
                "a free port on node 0 in --rendezvous",
                f"{nodes.port}, {problem}",
                "wait until that ends, or give every node another port",
            )
            raise UserError(finding, ExitCode.ENVIRONMENT) from error
        hosted = cls(store)
        hosted.call(Call())
        return hosted

    @classmethod
    def join(cls, nodes: Nodes) -> NodeStore | None:
        """Connect to the store of node 0; return None if nothing listens there yet."""
        try:
            socket.create_connection((nodes.host, nodes.port), timeout=2).close()
            return cls(_tcp_store(nodes.host, nodes.port, is_master=False))
        except (OSError, RuntimeError):
            return None

    def claim(self, rank: int) -> bool:
        """Register this process as node ``rank``; return False if another process did before."""
        return int(self._store.add(f"claim/{rank}", 1)) == 1

    def call(self, call: Call) -> None:
        """Publish the call of node 0."""
        self._set("call", call)

    def answer(self, rank: int, answer: Answer) -> None:
        """Publish the answer of node ``rank``."""
        self._set(f"answer/{rank}", answer)

    def current_call(self) -> Call | None:
        """Return the current call of node 0, or None between its start and its first call.

        Raises:
            RuntimeError: if node 0 cannot be reached.
            UserError: if the value in the store is not a valid call.
        """
        return self._get("call", Call)

    def current_answer(self, rank: int) -> Answer | None:
        """Return the current answer of node ``rank``, or None if it has not joined."""
        # Invalid, so not written by a node of this run.
        with contextlib.suppress(UserError, ValueError):
            return self._get(f"answer/{rank}", Answer)
        return None

    def _set(self, key: str, message: Call | Answer) -> None:
        self._store.set(key, canonical_json(dataclasses.asdict(message)).decode())

    def _get(self, key: str, cls: type[Message]) -> Message | None:
        if not self._store.check([key]):
            return None
        return build(cls, parse_object(self._store.get(key).decode()), path=f"node store: {key}")


def _tcp_store(host: str, port: int, *, is_master: bool) -> TCPStore:
    """Open torch's TCPStore with its C++ warnings about lost peers silenced.

    Raises:
        RuntimeError: if it cannot be opened or reached.
    """
    before = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, "ERROR")
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public in its docs

        options: dict[str, Any] = {"timeout": _TIMEOUT, "wait_for_workers": False}
        return TCPStore(host, port, None, is_master, **options)
    finally:
        if before is None:  # the ranks inherit the environment
            del os.environ[_LOG_LEVEL]
