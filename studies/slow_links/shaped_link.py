"""Two network namespaces joined by a link whose rate a token bucket filter of Linux limits.

For measurements over a slow network on one machine: traffic within a namespace uses its loopback
interface, and only traffic between the namespaces is limited.
Sources: network_namespaces(7), veth(4), tc-tbf(8).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ADDRESSES", "INTERFACE", "LinkShape", "ShapedLink", "why_no_shaped_link"]

INTERFACE: Final = "link0"  #: name of the interface in both namespaces
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")  #: addresses of the two ends
_QUEUE_BYTES: Final = 16 * 2**20  # larger than socket buffers, so that no packet is dropped
_TOOLS: Final = ("ip", "nsenter", "sysctl", "tc", "unshare")


@dataclass(frozen=True, slots=True)
class LinkShape:
    """A token bucket: ``burst_bytes`` pass at full speed, then ``bytes_per_s``; idling refills it.

    Bytes on the wire: each packet of at most 1,448 payload bytes has 66 bytes of headers.
    """

    bytes_per_s: float
    burst_bytes: int

    @classmethod
    def of_rate(cls, bits_per_s: float) -> LinkShape:
        """Return the shape with a burst of a quarter of a millisecond, or at least 16 KiB.

        With a smaller burst the kernel's timers, which refill the bucket, would limit the rate.
        """
        return cls(bits_per_s / 8, max(16 * 2**10, round(bits_per_s / 8 * 0.25e-3)))


class ShapedLink:
    """A context with two namespaces, ends 0 and 1, joined by a link without an initial limit.

    The anonymous namespaces and the link end with the context, or with this process, as soon as no
    process started in them is left.

    Raises:
        OSError: if the kernel or a tool refuses, with its message.
    """

    def __init__(self) -> None:
        self._holders: list[int] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._holders = [stack.enter_context(_Holder()).pid for _ in ADDRESSES]
            peer = f"type veth peer name {INTERFACE} netns {self._holders[1]}"
            self._run(0, f"ip link add {INTERFACE} {peer}")
            for end, address in enumerate(ADDRESSES):
                self._run(end, f"ip address add {address}/30 dev {INTERFACE}")
                self._run(end, "ip link set lo up")
                self._run(end, f"ip link set {INTERFACE} up")
                # Reno fills a lossless link; BBR would slow down to probe it.
                self._run(end, "sysctl --quiet --write net.ipv4.tcp_congestion_control=reno")
                self._run(end, "sysctl --quiet --write net.ipv4.tcp_slow_start_after_idle=0")
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def shape(self, shape: LinkShape | None) -> None:
        """Limit each end's traffic by ``shape``, or not at all if None."""
        for end in range(len(ADDRESSES)):
            if shape is None:
                discipline = f"tc qdisc replace dev {INTERFACE} root pfifo limit 1000"
            else:
                discipline = (
                    f"tc qdisc replace dev {INTERFACE} root tbf rate {shape.bytes_per_s:.0f}bps "
                    f"burst {shape.burst_bytes} limit {_QUEUE_BYTES}"
                )
            self._run(end, discipline)

    def command(self, end: int, *words: str) -> list[str]:
        """Return the words of a command that runs ``words`` in the namespace of ``end``."""
        return ["nsenter", f"--net=/proc/{self._holders[end]}/ns/net", "--", *words]

    def _run(self, end: int, text: str) -> None:
        done = subprocess.run(
            self.command(end, *text.split()), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise OSError(f"'{text}' in a network namespace: {done.stderr.strip()}")


class _Holder:
    """A process in its own network namespace, which ends when its input is closed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then cleans up
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            _, message = self._process.communicate()
            raise OSError(f"no network namespace: {message.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input


@functools.cache
def why_no_shaped_link() -> str:
    """Return why this machine cannot have a shaped link, or ``""`` if it can."""
    if os.geteuid() != 0:
        return "network namespaces need the root user"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (packages iproute2, procps and util-linux)"
    try:
        with ShapedLink() as link:
            link.shape(LinkShape.of_rate(1e9))
    except OSError as error:
        return str(error)
    return ""
