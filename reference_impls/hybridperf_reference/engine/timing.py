"""Timing of the parts of a step, on the rank's own device."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ACTIONS", "PARTS", "RecordedAction", "StepTimer"]

Item = TypeVar("Item")
_PAIRS: Final = 5  # of readings of two clocks, of which the closest is taken

PARTS = ("input", "read", "prepare", "waiting", "compute", "exposed_communication", "optimizer")
#: what is recorded of a step, by the name of its kind
ACTIONS = ("forward", "backward", "backward of inputs", "backward of weights", "update")


class RecordedAction(NamedTuple):
    """When this rank did one action of a step, in seconds of the machine's clock."""

    kind: str  #: of `ACTIONS`
    step: int
    stage: int
    microbatch: int
    start_s: float
    stop_s: float


class StepTimer:
    """Accumulate the seconds of named parts of a step.

    On an accelerator device events are recorded, so that timing does not synchronize the device.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device, self._clock = device, clock
        self._spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._counted_s: dict[str, float] = defaultdict(float)
        self._recorded_steps = range(0)
        self._recorded: list[tuple[str, int, int, int, Any, Any]] = []

    def record(self, steps: range) -> None:
        """Record the actions of ``steps`` instead of those so far."""
        self._recorded_steps = steps
        self._recorded.clear()
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        pairs = []
        for _ in range(_PAIRS):
            before_s, mark = time.time(), self.mark()  # ranks have no other clock in common
            pairs.append((time.time() - before_s, before_s, mark))
        # A rank that loses its processor between the two would put all its actions elsewhere.
        _, self._origin_s, self._origin = min(pairs, key=lambda pair: pair[0])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the body as part ``name``."""
        start = self.mark()
        yield
        self.add(name, start, self.mark())

    @contextmanager
    def action(
        self, kind: str, step: int, microbatch: int, *, stage: int = 0, part: str = "compute"
    ) -> Iterator[None]:
        """Time the body as ``part``, and record it as an action of ``step`` if that is recorded."""
        start = self.mark()
        yield
        stop = self.mark()
        self.add(part, start, stop)
        if step in self._recorded_steps:
            self._recorded.append((kind, step, stage, microbatch, start, stop))

    def each(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        """Yield ``items``, timing the wait for each as part ``name``."""
        while True:
            with self.part(name):
                item = next(items, None)
            if item is None:
                return
            yield item

    def mark(self) -> Any:
        """Return the current time: a device event, or on the CPU seconds of the clock."""
        if self._device.type == "cpu":
            return self._clock()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Any, stop: Any) -> None:
        """Add the time between two marks to part ``name``."""
        self._spans[name].append((start, stop))

    def count(self, name: str, seconds: float) -> None:
        """Add ``seconds`` measured elsewhere, such as in a worker process, to part ``name``."""
        self._counted_s[name] += seconds

    def collect(self) -> dict[str, float]:
        """Return the seconds of each of `PARTS` since the last call; synchronizes the device."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        seconds = {
            name: self._counted_s[name] + sum(self.seconds(*span) for span in self._spans[name])
            for name in PARTS
        }
        self._spans.clear()
        self._counted_s.clear()
        return seconds

    def actions(self) -> list[RecordedAction]:
        """Return the actions recorded since the last call; synchronizes the device."""
        if self._device.type != "cpu" and self._recorded:
            torch.accelerator.synchronize(self._device)
        actions = [
            RecordedAction(kind, step, stage, microbatch, self._at_s(start), self._at_s(stop))
            for kind, step, stage, microbatch, start, stop in self._recorded
        ]
        self._recorded.clear()
        return actions

    def _at_s(self, mark: Any) -> float:
        return self._origin_s + self.seconds(self._origin, mark)

    def seconds(self, start: Any, stop: Any) -> float:
        """Return the seconds between two marks; the device must have passed both."""
        if self._device.type == "cpu":
            return float(stop - start)
        return float(start.elapsed_time(stop)) / 1000
