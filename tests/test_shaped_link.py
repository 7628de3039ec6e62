"""Laws of the shaped link that measurements over slow networks rest on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from studies.slow_links import shaped_link
from studies.slow_links.shaped_link import ADDRESSES, INTERFACE, LinkShape, ShapedLink

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_link = pytest.mark.skipif(
    bool(reason := shaped_link.why_no_shaped_link()), reason=f"no shaped link: {reason}"
)
WIRE_BYTES = 1514 / 1448  #: a packet of a stream over the bytes that it carries

RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    for line in sys.stdin:
        left = int(line)
        while left:
            left -= len(connection.recv(left))
        connection.sendall(b"k")
"""
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        message = bytes(int(line))
        start = time.perf_counter()
        connection.sendall(message)
        connection.recv(1)
        print(time.perf_counter() - start, flush=True)
"""


@pytest.fixture(scope="module")
def link() -> Iterator[ShapedLink]:
    with ShapedLink() as opened:
        yield opened


class Stream:
    """A stream between two processes, each at an end of the link."""

    def __init__(self, link: ShapedLink, sender: int, receiver: int) -> None:
        address = ADDRESSES[receiver]
        self._receiver = _start(link.command(receiver, sys.executable, "-c", RECEIVE, address))
        assert self._receiver.stdout is not None
        assert self._receiver.stdout.readline() == "ready\n"
        self._sender = _start(link.command(sender, sys.executable, "-c", SEND, address))

    def seconds(self, message_bytes: int) -> float:
        """Return how long a message takes until its receiver has answered."""
        for process in (self._receiver, self._sender):
            assert process.stdin is not None
            process.stdin.write(f"{message_bytes}\n")
            process.stdin.flush()
        assert self._sender.stdout is not None
        return float(self._sender.stdout.readline())

    def close(self) -> None:
        """End both processes."""
        for process in (self._sender, self._receiver):
            process.communicate()


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@needs_link
@pytest.mark.parametrize("mbit_per_s", [20, 200])
def test_a_long_message_takes_its_bytes_less_the_burst_at_the_rate(
    link: ShapedLink, mbit_per_s: float
) -> None:
    shape = LinkShape.of_rate(mbit_per_s * 1e6)
    link.shape(shape)
    message_bytes = round(shape.bytes_per_s * 0.2)
    expected_s = (message_bytes * WIRE_BYTES - shape.burst_bytes) / shape.bytes_per_s
    stream = Stream(link, 0, 1)

    seconds = []
    for _ in range(10):  # a busy machine makes some longer, and none shorter
        seconds.append(stream.seconds(message_bytes))
        if min(seconds) < 1.05 * expected_s:
            break
        time.sleep(0.05)
    stream.close()

    assert 0.97 * expected_s < min(seconds) < 1.05 * expected_s


@needs_link
def test_a_message_shorter_than_the_burst_is_not_slowed_down_and_one_after_it_is(
    link: ShapedLink,
) -> None:
    shape = LinkShape.of_rate(0.5e6)
    link.shape(shape)
    message_bytes = shape.burst_bytes - 2000
    stream = Stream(link, 1, 0)

    at_the_rate_s = message_bytes / shape.bytes_per_s
    first_s, both_s = [], []
    for _ in range(10):  # a busy machine makes some longer, and none shorter
        time.sleep(1.2 * shape.burst_bytes / shape.bytes_per_s)  # the bucket fills
        start_s = time.monotonic()
        first_s.append(stream.seconds(message_bytes))
        stream.seconds(message_bytes)
        both_s.append(time.monotonic() - start_s)
        if first_s[-1] < at_the_rate_s / 2:
            break
    stream.close()

    assert min(first_s) < at_the_rate_s / 2
    # The bucket also fills while the first is under way, and before the second is sent.
    assert min(both_s) > (2 * message_bytes - shape.burst_bytes) / shape.bytes_per_s


@needs_link
def test_processes_of_one_end_do_not_use_the_link(link: ShapedLink) -> None:
    link.shape(LinkShape.of_rate(1e6))
    stream = Stream(link, 0, 0)

    seconds = stream.seconds(1_000_000)
    stream.close()

    assert seconds < 2  # at the rate it would take eight


@needs_link
def test_a_limit_is_lifted(link: ShapedLink) -> None:
    link.shape(LinkShape.of_rate(1e6))
    link.shape(None)
    stream = Stream(link, 0, 1)

    seconds = stream.seconds(1_000_000)
    stream.close()

    assert seconds < 2


@needs_link
def test_no_namespace_or_link_is_left_after_an_error() -> None:
    pids: list[int] = []

    def fail() -> None:
        with ShapedLink() as link:
            pids.extend(link._holders)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not Path(f"/sys/class/net/{INTERFACE}").exists()


@needs_link
def test_the_namespaces_end_with_a_process_that_is_killed() -> None:
    code = (
        "from studies.slow_links.shaped_link import ShapedLink; import time\n"
        "with ShapedLink() as link:\n"
        "    print(*link._holders, flush=True)\n"
        "    time.sleep(600)"
    )
    process = _start([sys.executable, "-c", code])
    assert process.stdout is not None
    pids = process.stdout.readline().split()
    assert len(pids) == 2
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)

    process.send_signal(signal.SIGKILL)
    process.communicate()

    deadline_s = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "a namespace is left"
        time.sleep(0.05)


@needs_link
def test_a_tool_that_refuses_is_quoted(link: ShapedLink) -> None:
    with pytest.raises(OSError, match=r"'tc qdisc replace .*' in a network namespace: .+"):
        link.shape(LinkShape(1e6, -1))


def test_why_there_is_no_link_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = shaped_link.why_no_shaped_link.__wrapped__
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ask() == "network namespaces need the root user"

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/sbin/{name}")
    assert ask() == "not installed: tc (packages iproute2, procps and util-linux)"


@pytest.mark.parametrize(("bits_per_s", "burst_bytes"), [(1e6, 16384), (1e9, 31250)])
def test_the_burst_lasts_a_quarter_of_a_millisecond_or_has_16_kib(
    bits_per_s: float, burst_bytes: int
) -> None:
    assert LinkShape.of_rate(bits_per_s) == LinkShape(bits_per_s / 8, burst_bytes)


def _runs(pid: str) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
