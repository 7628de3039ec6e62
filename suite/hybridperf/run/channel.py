"""The channels between the harness and ranks, and between nodes: messages, and how they are sent.

A frame is the length of a JSON object and of a payload, the object, and the payload. Whatever comes
from a rank is untrusted: only messages of `FROM_RANK` within the limits are taken. Between node 0
and the harnesses of other nodes, too, nothing but the messages of two tables is taken.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import UserError
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import WeightFormat  # noqa: TC001 - resolved when a message is read
from hybridperf.untrusted import LINE_CAP_BYTES, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CHANNEL_VARIABLE",
    "FROM_HARNESS",
    "FROM_NODE",
    "FROM_NODE_0",
    "FROM_RANK",
    "MODULES_CAP_BYTES",
    "Array",
    "Batches",
    "Channel",
    "ChannelError",
    "Describe",
    "Dismiss",
    "EnergyRead",
    "Evaluate",
    "EvaluateInitial",
    "EvaluationVerdict",
    "Greeting",
    "Imported",
    "InitialSamples",
    "Join",
    "JoinNode",
    "Launch",
    "Leave",
    "Message",
    "NodeFacts",
    "Pause",
    "Predictions",
    "Proceed",
    "RanksEnded",
    "ReadEnergy",
    "Ready",
    "Refusal",
    "Save",
    "Saved",
    "Start",
    "StopRanks",
    "Track",
    "Welcome",
    "accept",
    "connect",
    "listen",
    "open_channel",
]

CHANNEL_VARIABLE: Final = "HYBRIDPERF_CHANNEL"
#: environment variable: TOKEN@PATH of the harness's socket, TOKEN@HOST:PORT from other machines
_LENGTHS: Final = struct.Struct("!IQ")  # of the JSON object and of the payload, in bytes
_CREDENTIALS: Final = struct.Struct("3i")  # process, user and group: unix(7)
_MOST_DESCRIPTORS: Final = 4
MODULES_CAP_BYTES: Final = 2**23  #: of the payload of `Imported`
_SAMPLES_CAP_BYTES: Final = 2**36  #: of the payload of `Start`
_PART_BYTES: Final = 2**18  #: read at once
_SEND_TIMEOUT: Final = struct.pack("ll", 5, 0)  #: seconds, microseconds
Status = Literal[0, 1, 2, 3, 4, 5, 6]  # the values of ExitCode


class ChannelError(Exception):
    """Raised when the other side is gone, or sends what is no message."""


class Message:
    """Base class of the messages."""

    __slots__: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Join(Message):
    """The first message of a rank."""

    rank: int
    token: str  #: of the run, which its processes find in their environment


@dataclass(frozen=True, slots=True)
class Describe(Message):
    """A fact about the trainer's setup, for the log."""

    key: str
    value: object = None
    metadata: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluateInitial(Message):
    """The rank has loaded the given weights, and asks for the samples to evaluate them."""


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The rank is initialised; the run starts when all ranks are."""


@dataclass(frozen=True, slots=True)
class Track(Message):
    """Statistics of the current block, for the log."""

    statistics: dict[str, object]


@dataclass(frozen=True, slots=True)
class Pause(Message):
    """The rank is between two parts of the current block."""

    steps: int  #: batches that the rank has read in the block


@dataclass(frozen=True, slots=True)
class Evaluate(Message):
    """The rank's training of the current block has ended."""

    steps: int  #: batches that the rank has read in the block


@dataclass(frozen=True, slots=True)
class Predictions(Message):
    """The rank's part of an evaluation: the payload has the classes, int64, of all ``chunks``.

    From another machine, the weights follow them.
    """

    chunks: tuple[tuple[int, ...], ...]  #: [chunk]: first sample, and the one after the last
    payload: bytes = b""
    weights: int | None = None
    #: bytes of the weights that predicted, in sealed memory that comes as a file descriptor where
    #: both ends are on one machine; None if the rank holds none, or does not hand them over


@dataclass(frozen=True, slots=True)
class Saved(Message):
    """The rank has written its part of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Imported(Message):
    """The modules that the rank has imported, off the clock: the payload has them as JSON."""

    payload: bytes = b""  #: files by names of modules


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """What a rank needs to initialise."""

    task_path: str  #: as in `RunSpec`
    overrides: dict[str, object]
    plan: str
    seed: int  #: of the initial weights and of dropout
    resumed: int | None  #: step that the run, once resumed, begins with
    saves: bool  #: whether the run saves checkpoints
    pauses: bool  #: whether blocks are trained in parts, with checkpoints between them
    initial: str = ""  #: file of the weights to begin from; empty for random weights
    initial_format: WeightFormat | None = None  #: None: names of tensors tell it


@dataclass(frozen=True, slots=True)
class Array:
    """An array in shared memory."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  #: in bytes


@dataclass(frozen=True, slots=True)
class InitialSamples(Message):
    """The samples for the evaluation before the clock; their memory comes as that of `Start`."""

    inputs: Array | None = None  #: None if the rank reads the data set itself
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Start(Message):
    """The clock runs. With arrays, their memory comes as a file descriptor, or as the payload."""

    seed: int  #: of the order of samples, and of augmentation
    train_inputs: Array | None = None  #: None if the rank reads the data set itself
    train_labels: Array | None = None
    evaluation_inputs: Array | None = None
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Save(Message):
    """Every rank is to write its part of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Proceed(Message):
    """Every rank is to train the next part of the block."""

    steps: int  #: of the part


@dataclass(frozen=True, slots=True)
class EvaluationVerdict(Message):
    """The quality that the harness counted, and whether the run goes on."""

    quality: float
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """The rank sent a message out of turn."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node states of itself when it joins, which node 0 compares with its own."""

    configuration: dict[str, object]  #: the request, and the hashes of data and code
    description: dict[str, object]  #: of the system


@dataclass(frozen=True, slots=True)
class Greeting(Message):
    """The first message of node 0, to whoever connects to its rendezvous."""

    sha256: str  #: of the token in the file that node 0 has written to the shared folder


@dataclass(frozen=True, slots=True)
class JoinNode(Message):
    """The first message of another node."""

    node: int
    token: str  #: as the shared folder holds it; empty if this node does not see it there
    facts: NodeFacts | None = None  #: None if the node cannot take part, as `Leave` then says


@dataclass(frozen=True, slots=True)
class Launch(Message):
    """The node is to drop the data from its page cache, and to launch its ranks of a run."""

    run: str  #: folder of the run, relative to ``--out``
    spec: dict[str, object]  #: the fields of the run's `RunSpec`
    channel: str  #: value of `CHANNEL_VARIABLE` for the ranks


@dataclass(frozen=True, slots=True)
class Batches(Message):
    """The progress of the node's ranks."""

    begun: tuple[int, ...]  #: [rank]: batches begun so far; 0 for ranks of other nodes


@dataclass(frozen=True, slots=True)
class ReadEnergy(Message):
    """The node is to read its counters of energy: an interval ends and another begins."""

    attempt: int
    epoch: int  #: last epoch of the block that ends; 0 at the start of the run


@dataclass(frozen=True, slots=True)
class EnergyRead(Message):
    """The energy of the node in the interval that has ended."""

    attempt: int
    epoch: int
    energy: dict[str, object]  #: table of an `Energy`


@dataclass(frozen=True, slots=True)
class StopRanks(Message):
    """The node is to end its ranks, if any are left."""


@dataclass(frozen=True, slots=True)
class RanksEnded(Message):
    """No process of the node's ranks is left."""

    status: int  #: exit status if they ended by themselves, else 0


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """The node ends before node 0 does."""

    reason: str
    status: Status


@dataclass(frozen=True, slots=True)
class Dismiss(Message):
    """The command ends on all nodes."""

    status: Status
    reason: str  #: error message, if node 0 failed


Table = dict[str, type[Message]]
FROM_RANK: Final[Table] = {
    each.__name__: each
    for each in (
        *(Join, Describe, EvaluateInitial, Ready, Track, Pause, Evaluate, Predictions, Saved),
        Imported,
    )
}
FROM_HARNESS: Final[Table] = {
    each.__name__: each
    for each in (Welcome, InitialSamples, Start, Save, Proceed, EvaluationVerdict, Refusal)
}
FROM_NODE: Final[Table] = {
    each.__name__: each for each in (JoinNode, Batches, EnergyRead, RanksEnded, Leave)
}
FROM_NODE_0: Final[Table] = {
    each.__name__: each for each in (Greeting, Launch, ReadEnergy, StopRanks, Dismiss)
}


class Channel:
    """One end of a connection; ``expected`` are the messages that the other end may send.

    File descriptors come with messages where both ends are on one machine.
    """

    def __init__(self, connection: socket.socket, expected: Mapping[str, type[Message]]) -> None:
        self._socket, self._expected = connection, expected
        self.most_payload_bytes = 0  #: that may come with one message
        self.local = connection.family == socket.AF_UNIX  #: whether descriptors can be sent
        self._buffer = bytearray()
        self._descriptors: list[int] = []  # received and not taken

    def peer(self) -> int | None:
        """Return the id of the process at the other end; None if it is on another machine."""
        if not self.local:
            return None
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[0])

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection, and the file descriptors that nobody took."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def detect_loss(self, after_s: int) -> None:
        """Have reads and writes fail once the machine at the other end is silent for ``after_s``.

        The kernels ask and answer, whatever their processes do. Source: tcp(7), socket(7).
        """
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, after_s // 4),
            (socket.TCP_KEEPINTVL, after_s // 4),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, after_s * 1000),  # of what was sent and is not acknowledged
        ):
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def take_descriptor(self) -> int:
        """Return the first file descriptor that came and was not taken, which the caller closes.

        Raises:
            ChannelError: if there is none.
        """
        if not self._descriptors:
            raise ChannelError("a message without the memory that it names")
        return self._descriptors.pop(0)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send ``message``, with an open file descriptor if the other end is on this machine.

        Raises:
            ChannelError: if the other end is gone or does not read.
        """
        fields = {
            name: _plain(getattr(message, name)) for name in message.__slots__ if name != "payload"
        }
        payload = getattr(message, "payload", b"")
        text = json.dumps({"message": type(message).__name__, **fields}, allow_nan=False).encode()
        head = _LENGTHS.pack(len(text), len(payload)) + text
        try:
            sent = 0 if descriptor is None else socket.send_fds(self._socket, [head], [descriptor])
            self._socket.sendall(memoryview(head)[sent:])
            self._socket.sendall(payload)
        except OSError as error:
            raise ChannelError(f"the other end is gone: {error.strerror}") from error

    def receive(self) -> Message:
        """Wait for the next message and return it.

        Raises:
            ChannelError: as `read` and `next_message`.
        """
        while (message := self.next_message()) is None:
            self.read()
        return message

    def read(self) -> None:
        """Read what has arrived, or wait until something does.

        Raises:
            ChannelError: if the other end is gone, or sends more file descriptors than any message.
        """
        try:
            part, received, _, _ = socket.recv_fds(self._socket, _PART_BYTES, _MOST_DESCRIPTORS)
        except OSError as error:
            raise ChannelError(f"the other end is gone: {error.strerror}") from error
        self._descriptors += received
        if len(self._descriptors) > _MOST_DESCRIPTORS:
            raise ChannelError("more files than messages name")
        if not part:
            raise ChannelError("the other end is gone")
        self._buffer += part

    def poll(self, timeout_s: float) -> Message | None:
        """Return the next message if it arrives within ``timeout_s``, else None.

        Raises:
            ChannelError: as `read` and `next_message`.
        """
        if (message := self.next_message()) is not None:
            return message
        if select.select([self], [], [], timeout_s)[0]:
            self.read()
        return self.next_message()

    def next_message(self) -> Message | None:
        """Return the next message that has arrived whole, or None.

        Raises:
            ChannelError: if what arrived is no message that this end expects.
        """
        if len(self._buffer) < _LENGTHS.size:
            return None
        text_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if text_bytes > LINE_CAP_BYTES or payload_bytes > self.most_payload_bytes:
            raise ChannelError(f"a message of {text_bytes} + {payload_bytes} bytes")
        start = _LENGTHS.size + text_bytes
        end = start + payload_bytes
        if len(self._buffer) < end:
            return None
        text, payload = bytes(self._buffer[_LENGTHS.size : start]), bytes(self._buffer[start:end])
        del self._buffer[:end]
        try:
            return self._parse(text, payload)
        except (ValueError, UserError) as error:
            raise ChannelError(f"what is no message: {error}") from error

    def _parse(self, text: bytes, payload: bytes) -> Message:
        fields = parse_object(text.decode())
        name = fields.pop("message", None)
        kind = self._expected.get(str(name))
        if kind is None:
            raise ValueError(f"its name is {name!r:.40}")
        message = build(kind, fields, path="channel")
        if isinstance(message, Predictions | Imported | Start):
            return dataclasses.replace(message, payload=payload)
        if payload:
            raise ValueError(f"{name} with a payload")
        return message


def listen(port: int) -> socket.socket:
    """Return a socket that listens at ``port`` of all interfaces, at any free port if it is 0.

    Raises:
        OSError: if this process cannot listen there.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)


def accept(listener: socket.socket, expected: Mapping[str, type[Message]]) -> Channel | None:
    """Return the channel to the next process that has connected; None if it has gone again."""
    try:
        connection, _ = listener.accept()
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return None
    return Channel(connection, expected)


def open_channel(
    place: str, expected: Mapping[str, type[Message]], timeout_s: float | None = None
) -> Channel:
    """Connect to ``place``, the path of a socket or HOST:PORT.

    Raises:
        ChannelError: if nothing listens there, or does not accept within ``timeout_s``.
    """
    try:
        if place.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place)
        else:
            host, _, port = place.rpartition(":")
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise ChannelError(f"nothing listens at {place}: {error.strerror}") from error
    return Channel(connection, expected)


def connect(address: str, rank: int) -> Channel:
    """Join the run at ``address``, the value of `CHANNEL_VARIABLE`, as ``rank``.

    Raises:
        ChannelError: if nothing listens there.
    """
    token, _, place = address.partition("@")
    channel = open_channel(place, FROM_HARNESS)
    channel.most_payload_bytes = _SAMPLES_CAP_BYTES
    channel.send(Join(rank, token))
    return channel


def _plain(value: object) -> object:
    return dataclasses.asdict(value) if isinstance(value, Array | NodeFacts) else value
