"""Two ways to train the same thing, in turn in one process, and how their speeds compare."""

from __future__ import annotations

import gc
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Side", "interval", "rounded_interval", "take_turns"]


class Side(Protocol):
    """One of the two: a trainer with its own copy of the model."""

    def train_epoch(self, epoch: int) -> None:
        """Train through ``epoch``."""

    def mean_loss(self) -> float | None:
        """Return the mean since the last call, where this rank knows it; this is not timed."""


@dataclass
class _Clock:
    """Seconds of each side's epochs, on the wall and of the processor."""

    wall_s: list[float]
    processor_s: list[float]


def take_turns(
    ours: Side, theirs: Side, *, pairs: int, meet: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    """Train both through the same epochs, ABBA; the first pair warms up and is not timed.

    ``meet`` waits for the other ranks. Returns, for each side, the loss of its first epoch and
    the seconds of the others.
    """
    clocks = {"ours": _Clock([], []), "theirs": _Clock([], [])}
    sides = {"ours": ours, "theirs": theirs}
    first_losses = {}
    for name, side in sides.items():
        side.train_epoch(1)
        first_losses[name] = side.mean_loss()
    gc.collect()
    for epoch in range(2, pairs + 2):
        for name in ("ours", "theirs") if epoch % 2 else ("theirs", "ours"):
            meet()
            start = time.perf_counter(), time.process_time()
            sides[name].train_epoch(epoch)
            meet()
            clocks[name].wall_s.append(time.perf_counter() - start[0])
            clocks[name].processor_s.append(time.process_time() - start[1])
            sides[name].mean_loss()
    return {name: {"loss": first_losses[name], **vars(clocks[name])} for name in sides}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, from order statistics (the sign test)."""
    ordered, count = sorted(values), len(values)
    outside, tail = 0, math.ldexp(1, -count)  # probability that so few values are below it
    while outside < count // 2 and tail <= 0.025:
        outside += 1
        tail += math.comb(count, outside) * math.ldexp(1, -count)
    least = max(0, outside - 1)
    return statistics.median(ordered), ordered[least], ordered[count - 1 - least]


def rounded_interval(ratios: Sequence[float]) -> list[float]:
    """Return the median of ``ratios`` and its 95 % interval, to three digits."""
    return [round(number, 3) for number in interval(ratios)]
