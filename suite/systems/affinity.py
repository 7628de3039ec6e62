"""Let this process, and all that it starts, use some of the machine's cores only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from suite.systems import files

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["only_cores"]


@contextlib.contextmanager
def only_cores(count: int, root: Path = Path("/")) -> Iterator[None]:
    """Use the first ``count`` cores that may be used; all of them where there are no more."""
    before = os.sched_getaffinity(0)
    siblings: dict[str, set[int]] = {}
    for cpu in sorted(before):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.setdefault(files.text(place) or str(cpu), set()).add(cpu)
    chosen = list(siblings.values())[:count]
    os.sched_setaffinity(0, set().union(*chosen))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
