"""A harness in a thread that serves the ranks of a run, which are in the test's own process."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.run.channel import connect
from hybridperf.run.rank_server import RankServer
from hybridperf.run.timed_run import TimedRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.run.spec import RunSpec

__all__ = ["join", "served"]


@contextlib.contextmanager
def served(spec: RunSpec) -> Iterator[RankServer]:
    """Serve the ranks of the run ``spec`` while the body runs, and what they sent until then."""
    spec.work.mkdir(exist_ok=True)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.serve(0.01)
        server.serve(0)

    with contextlib.closing(RankServer(spec)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            ended.set()
            thread.join()


def join(server: RankServer, spec: RunSpec, rank: int = 0) -> TimedRun:
    """Return the run as a rank sees it."""
    return TimedRun(connect(server.address, rank), rank, Path(spec.folder))
