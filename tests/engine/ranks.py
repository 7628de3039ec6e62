"""Worlds of ranks for tests: forked from one process that has imported torch, without torchrun.

Importing what a rank needs takes ten seconds of CPU, more than most of what tests then compute.
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import connection, get_context, set_start_method
from typing import TYPE_CHECKING, Final

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stub forgets it

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

__all__ = ["run_ranks", "start_ranks", "wait_for_ranks"]

_LONGEST_S: Final = 1500  #: ends a world that hangs; a busy machine must not fail one

_FORKSERVER = get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["tests.engine.preload"])


class World:
    """Ranks that run together, the store where they meet, and what they print."""

    def __init__(self, ranks: Sequence[BaseProcess], store: TCPStore, output: Path) -> None:
        self.ranks, self._store, self.output = ranks, store, output


def start_ranks(ranks: int, work: Callable[..., None], *arguments: object, output: Path) -> World:
    """Start ``work(*arguments)`` on each of so many ``ranks``, which print into ``output``.

    ``work`` is a function of a module, and sees the environment that torchrun gives its workers.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the test's own process serves the store
        "WORLD_SIZE": str(ranks),
    }
    output.touch()
    processes = []
    for rank in range(ranks):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(_FORKSERVER.Process(target=_rank, args=(own, output, work, arguments)))
        processes[-1].start()
    return World(processes, store, output)


def wait_for_ranks(worlds: Sequence[World], longest_s: float = _LONGEST_S) -> None:
    """Wait until all ranks have ended; end those that wait for one that failed.

    Raises:
        AssertionError: with the end of what its world printed, where one failed or took too long.
    """
    deadline_s = time.monotonic() + longest_s
    running = {rank.sentinel: rank for world in worlds for rank in world.ranks}
    while running:
        ended = connection.wait(list(running), timeout=max(0.0, deadline_s - time.monotonic()))
        failed = [running.pop(sentinel) for sentinel in ended if isinstance(sentinel, int)]
        if not ended or any(rank.exitcode for rank in failed):
            break
    for rank in running.values():
        rank.kill()
    for world in worlds:
        for rank in world.ranks:
            rank.join()
    text = "\n".join(world.output.read_text()[-8000:] for world in worlds)
    codes = [rank.exitcode for world in worlds for rank in world.ranks]
    assert not any(codes), f"ranks ended with {codes}\n{text}"


def run_ranks(
    ranks: int,
    work: Callable[..., None],
    *arguments: object,
    output: Path,
    longest_s: float = _LONGEST_S,
) -> None:
    """Run ``work(*arguments)`` on each of so many ``ranks``; as `start_ranks` and then wait."""
    wait_for_ranks([start_ranks(ranks, work, *arguments, output=output)], longest_s)


def _rank(
    environment: dict[str, str],
    output: Path,
    work: Callable[..., None],
    arguments: Sequence[object],
) -> None:
    os.environ.update(environment)
    set_start_method("fork", force=True)  # of workers, as in a rank that torchrun starts
    torch.set_num_threads(1)
    with output.open("a") as printed:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(printed.fileno(), stream.fileno())
        work(*arguments)
