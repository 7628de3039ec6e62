"""Two ``hybridperf run`` with one folder and one rendezvous, as on two machines."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from hybridperf.run.local_ranks import reserve_port
from hybridperf.run.spec import NODE_VARIABLE
from tests.run.conftest import find, finished, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.run.command_server import Command
    from tests.run.conftest import Bench, Finished

__all__ = ["Pair", "ended"]


@dataclass
class Pair:
    """Node 0 and node 1 of a run of two ranks."""

    bench: Bench
    #: kept until the test ends: else another worker's process may get the port meanwhile
    reserved: socket.socket = field(default_factory=lambda: reserve_port(""))
    host: str = "127.0.0.1"

    @property
    def port(self) -> int:
        """Return the port of the rendezvous."""
        return int(self.reserved.getsockname()[1])

    def start(self, node: int, *arguments: str, **keywords: Any) -> Command:
        """Start one of the two."""
        where = (
            "--nodes",
            "2",
            "--node-rank",
            str(node),
            "--rendezvous",
            f"{self.host}:{self.port}",
        )
        keywords = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | keywords
        return self.bench.start("--plan", "dp=2", *where, *arguments, **keywords)

    def both(self, *arguments: str, **keywords: Any) -> list[Command]:
        """Start both with the same command."""
        return [self.start(node, *arguments, **keywords) for node in (0, 1)]

    def run(self, *arguments: str, **keywords: Any) -> list[Finished]:
        """Carry both out."""
        return ended(*self.both(*arguments, **keywords))

    def strike(self, fault: str, *arguments: str, **keywords: Any) -> list[Finished]:
        """Carry both out with a fault of rank 1 that strikes once."""
        once = str(self.bench.note())
        return self.run(*arguments, FAULT=fault, FAULT_RANK="1", FAULT_ONCE=once, **keywords)

    def hang(
        self, *arguments: str, starters: Sequence[tuple[str, ...]] = ((), ()), **more: str
    ) -> list[Command]:
        """Start both, and return while rank 1 hangs in the second epoch and rank 0 waits for it.

        Each node has a command that starts it, which may be empty.
        """
        before, started = set(find(self.bench.out, "run.json")), []
        for node, self.bench.starter in enumerate(starters):
            started.append(self.start(node, *arguments, FAULT="hang", FAULT_RANK="1", **more))
        self.bench.starter = ()
        wait_until(
            lambda: (
                set(find(self.bench.out, "run.json")) - before
                or any(each.poll() is not None for each in started)
            )
        )
        self.bench.await_batches(42)
        assert all(map(self.ranks_of, (0, 1)))
        return started

    def listens(self) -> bool:
        """Tell whether node 0 is there."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ranks_of(self, node: int) -> list[psutil.Process]:
        """Return the processes that a node has started for some run."""
        found = []
        for process in self.bench.processes_left():
            with contextlib.suppress(psutil.Error, KeyError):
                if process.environ()[NODE_VARIABLE].split()[0] == str(node):
                    found.append(process)
        return found

    def assert_settled(self, *outcomes: str) -> None:
        """Attempts have ended so, and nothing is left on either node, nor between them."""
        self.bench.assert_settled()
        assert self.bench.outcomes() == list(outcomes)
        assert [path.name for path in self.bench.out.iterdir()] == ["local"]


def ended(*processes: Command) -> list[Finished]:
    return [finished(process) for process in processes]
