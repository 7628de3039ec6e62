"""Map a function over items in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["parallel_map"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def parallel_map(
    function: Callable[[Item], Answer], items: Sequence[Item], jobs: int
) -> Iterator[Answer]:
    """Yield ``function(item)`` for every item, in order, computed by ``jobs`` processes.

    Function, items and results must be picklable. One job, or one item, starts no process.
    """
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    # Imported late to keep the start of commands with one job fast.
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(jobs, len(items))) as pool:
        yield from pool.map(function, items, chunksize=1 + len(items) // (8 * jobs))
