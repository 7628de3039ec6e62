"""Do independent work in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["spread"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def spread(
    function: Callable[[Item], Answer], items: Sequence[Item], jobs: int
) -> Iterator[Answer]:
    """Yield ``function`` of every item, in order, from ``jobs`` processes.

    Function, items and answers must be such as `pickle` takes.
    """
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    # Imported where it is needed: checking one log should start at once.
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(min(jobs, len(items))) as pool:
        yield from pool.map(function, items, chunksize=1 + len(items) // (8 * jobs))
