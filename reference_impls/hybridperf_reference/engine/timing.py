"""Timing of a step's parts on the rank's own device, and its breakdown and timeline over ranks."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from hybridperf.log import keys
from hybridperf_reference.engine.mesh import coordinates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh

__all__ = [
    "ACTIONS",
    "PARTS",
    "RecordedAction",
    "StepTimer",
    "gather_timeline",
    "time_breakdown",
    "timeline_steps",
]

Item = TypeVar("Item")
_PAIRS: Final = 5  # readings of two clocks; the closest pair is used

PARTS = ("input", "read", "prepare", "waiting", "compute", "exposed_communication", "optimizer")
#: kinds of recorded actions
ACTIONS = ("forward", "backward", "backward of inputs", "backward of weights", "update")


class RecordedAction(NamedTuple):
    """Start and end of one action of this rank, in seconds of the machine's clock."""

    kind: str  #: one of `ACTIONS`
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
        self._timeline_steps = range(0)
        self._recorded: list[tuple[str, int, int, int, Any, Any]] = []

    def record(self, steps: range) -> None:
        """Record the actions of ``steps``, and discard earlier records."""
        self._timeline_steps = steps
        self._recorded.clear()
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        pairs = []
        for _ in range(_PAIRS):
            before_s, mark = time.time(), self.mark()  # the only clock that ranks share
            pairs.append((time.time() - before_s, before_s, mark))
        # Preemption between the two readings would shift all actions.
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
        """Time the body as ``part``, and record it as an action if ``step`` is recorded."""
        start = self.mark()
        yield
        stop = self.mark()
        self.add(part, start, stop)
        if step in self._timeline_steps:
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


def time_breakdown(
    timer: StepTimer, *, samples: int, plan: ParallelPlan, mesh: Mesh
) -> dict[str, object]:
    """Return each rank's seconds since the last call and shares over all ranks; see docs/log.md.

    A collective over all ranks. ``samples`` is the number of samples trained on since then,
    over all ranks. With sharded or split parameters, communication is interleaved with computation
    and counted as computation; exposed communication is then None.
    """
    own = timer.collect()
    # On the device, as NCCL requires.
    ranks = mesh.gather(torch.tensor([own[part] for part in PARTS], device=mesh.device))
    apart = not plan.zero and plan.tp == plan.cp == 1
    stages, waiting, exposed, total = [], 0.0, 0.0, 0.0
    loading, training = [], []  # seconds of each rank
    for rank, values in enumerate(ranks):
        part = dict(zip(PARTS, values.tolist(), strict=True))
        loading.append(part.pop("read") + part.pop("prepare"))
        training.append(part["waiting"] + part["compute"] + part["optimizer"])
        # Timed inside the backward pass, so included in the computation.
        part["compute"] -= part["exposed_communication"]
        waiting += part["waiting"]
        exposed += part["exposed_communication"]
        total += sum(part.values())
        if not apart:
            del part["exposed_communication"]
        seconds = {f"{name}_s": round(value, 6) for name, value in part.items()}
        at = coordinates(plan, rank)
        place: dict[str, float] = {"replica": at["dp"], "stage": at["pp"]}
        if plan.cp > 1:
            place["context"] = at["cp"]
        if plan.tp > 1:
            place["tensor"] = at["tp"]
        stages.append(place | seconds)
    axes = ("replica", "stage", "context", "tensor")
    stages.sort(key=lambda each: [each.get(axis, 0) for axis in axes])
    return {
        "stages": stages,
        "bubble": _share(waiting, total),
        "exposed_communication": _share(exposed, total) if apart else None,
        # The slowest loader limits every step.
        "loader_samples_per_s": _rate(samples, max(loading)),
        # Steps include waiting for late input of other ranks; the shortest step includes the least.
        "compute_samples_per_s": _rate(samples, min(training)),
    }


def _share(seconds: float, total_s: float) -> float | None:
    """Return ``seconds`` over ``total_s``, or None if no time was measured."""
    return round(seconds / total_s, 6) if total_s > 0 else None


def _rate(samples: int, seconds: float) -> float | None:
    """Return samples per second, or None if no time was measured."""
    return round(samples / seconds, 3) if seconds > 0 else None


def timeline_steps(steps: range, plan: ParallelPlan) -> range:
    """Return the steps of a timeline: the last of ``steps``, or the last two without a flush.

    Empty if they have too many actions for a log.
    """
    recorded = steps[-1:] if plan.flush else steps[-2:]
    return (
        recorded if len(recorded) * _most_actions(plan) * plan.pp <= keys.TIMELINE_CAP else range(0)
    )


def _most_actions(plan: ParallelPlan) -> int:
    """Return the largest number of a rank's actions in a step: three a micro-batch, an update."""
    return 3 * plan.stages * plan.microbatches + 1


def gather_timeline(timer: StepTimer, plan: ParallelPlan, mesh: Mesh) -> list[dict[str, object]]:
    """Return the recorded actions of each rank of this rank's pipeline, for the log.

    A collective over the ranks of the pipeline. Seconds count from the first action; across
    machines they are as comparable as the machines' clocks.
    """
    own = timer.actions()
    rows = torch.zeros(2 * _most_actions(plan), len(RecordedAction._fields), dtype=torch.float64)
    for number, action in enumerate(own):
        rows[number] = torch.tensor(
            [ACTIONS.index(action.kind) + 1, *action[1:]], dtype=torch.float64
        )
    everyone = [rows]
    if mesh.pp_group is not None:
        rows = rows.to(mesh.device)
        everyone = [torch.empty_like(rows) for _ in range(plan.pp)]
        dist.all_gather(everyone, rows, group=mesh.pp_group)
    actions = [[each for each in rank.tolist() if each[0]] for rank in everyone]
    origin_s = min((each[4] for rank in actions for each in rank), default=0.0)
    return [
        {
            "rank": number,
            "actions": [
                [
                    ACTIONS[int(kind) - 1],
                    *map(int, where),
                    *(round(at_s - origin_s, 6) for at_s in (start_s, stop_s)),
                ]
                for kind, *where, start_s, stop_s in rank
            ],
        }
        for number, rank in enumerate(actions)
    ]
