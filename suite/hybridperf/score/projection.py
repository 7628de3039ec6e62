"""Compare the steps of a run with the projection made before it started, and say why they are slow.

Both are read from the log, which may come from anyone: what is not as docs/log.md says is unknown.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from hybridperf.log import keys
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hybridperf.log.log import Log

__all__ = [
    "MUCH_SLOWER",
    "Hint",
    "PartName",
    "StepComparison",
    "StepPart",
    "compare_steps",
    "mean_comparison",
    "why_slow",
]

PartName = Literal["computation", "waiting", "exposed communication", "update", "input"]

_EXPOSED: Final = "exposed_communication_s"
_FIELDS: Final[dict[PartName, str]] = {  #: field of a rank in the log, by part
    "computation": "compute_s",
    "waiting": "waiting_s",
    "exposed communication": _EXPOSED,
    "update": "optimizer_s",
    "input": "input_s",
}
_COORDINATES: Final = ("replica", "stage", "context", "tensor")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHORTEST_S: Final = 1e-9  #: shortest projected step
_LONGEST_S: Final = 1e9  #: longest duration in a block

MUCH_SLOWER: Final = 2.0  #: times as long as projected; healthy runs took up to 1.51 times

_Seconds = dict[str, float]  # by field


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step: the computation of one rank, or the mean of another part over all ranks."""

    name: PartName
    rank: str  #: coordinates that identify the rank; "" for a mean over ranks, or a single rank
    measured_s: float
    projected_s: float

    @property
    def excess_s(self) -> float:
        """Return the measured seconds minus the projected seconds."""
        return self.measured_s - self.projected_s


@dataclass(frozen=True, slots=True)
class StepComparison:
    """The mean step of a run, or of several runs, compared with the projected step."""

    step_s: float  #: from the steady throughput
    projected_step_s: float
    projected_samples_per_s: float
    source: str  #: origin of the projection's times, in words; "" if unknown
    parts: tuple[StepPart, ...]  #: empty if the log lacks the parts of a rank

    @property
    def share(self) -> float:
        """Return the measured rate over the projected one."""
        return self.projected_step_s / self.step_s

    @property
    def largest_difference(self) -> StepPart | None:
        """Return the part that differs most from the projection."""
        return max(self.parts, key=lambda part: abs(part.excess_s), default=None)

    @property
    def sentence(self) -> str:
        """Return how long a step took, and the part that differs most."""
        text = f"a step takes {_ms(self.step_s)}, projected {_ms(self.projected_step_s)}"
        text += f" from {self.source}" if self.source else ""
        if (part := self.largest_difference) is None:
            return f"{text}."
        where = f"{part.name} of {part.rank}" if part.rank else part.name
        figures = f"{_ms(part.measured_s)}, projected {_ms(part.projected_s)}"
        return f"{text}; the largest difference is in {where}: {figures}."


def compare_steps(log: Log, steady_samples_per_s: float | None) -> StepComparison | None:
    """Compare the steps of a run with their projection; None if either is unknown."""
    entry = log.first(keys.PROJECTION)
    batch = whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
    if entry is None or not isinstance(entry.value, dict) or not batch or not steady_samples_per_s:
        return None
    projected_s = number(entry.value.get("step_s"), _SHORTEST_S, _LONGEST_S)
    if projected_s is None or not batch / _LONGEST_S <= steady_samples_per_s <= batch / _SHORTEST_S:
        return None
    return StepComparison(
        step_s=batch / steady_samples_per_s,
        projected_step_s=projected_s,
        projected_samples_per_s=batch / projected_s,
        source=_source(entry.value.get("source")),
        parts=tuple(_parts(_measured(log), _projected(entry.value.get("ranks")))),
    )


def mean_comparison(runs: Sequence[StepComparison]) -> StepComparison | None:
    """Return the mean of ``runs`` of one plan, with the parts that all of them have."""
    if not runs:
        return None
    every = [{(part.name, part.rank): part for part in run.parts} for run in runs]
    shared = [key for key in every[0] if all(key in each for each in every)]
    return StepComparison(
        step_s=fmean(run.step_s for run in runs),
        projected_step_s=fmean(run.projected_step_s for run in runs),
        projected_samples_per_s=fmean(run.projected_samples_per_s for run in runs),
        source=runs[0].source if len({run.source for run in runs}) == 1 else "",
        parts=tuple(
            StepPart(
                *key,
                measured_s=fmean(each[key].measured_s for each in every),
                projected_s=fmean(each[key].projected_s for each in every),
            )
            for key in shared
        ),
    )


_Rank = tuple[int, ...]  # its coordinates


def _parts(measured: dict[_Rank, _Seconds], projected: dict[int, _Seconds]) -> Iterator[StepPart]:
    """Yield the parts of a step: computation by rank, and the others' means over ranks.

    Where ranks state no exposed communication, it is part of their computation.
    """
    pairs = [(seconds, projected.get(rank[1])) for rank, seconds in measured.items()]
    known = [(own, dict(theirs)) for own, theirs in pairs if theirs is not None]
    if len(known) < len(pairs):
        return
    apart = all(_EXPOSED in own for own, _ in known)
    if not apart:
        for side in itertools.chain(*known):
            side["compute_s"] += side.pop(_EXPOSED, 0.0)
    names = _names(list(measured))
    for name, (own, theirs) in zip(names, known, strict=True):
        yield StepPart("computation", name, own["compute_s"], theirs["compute_s"])
    for part, field in _FIELDS.items():
        if known and part != "computation" and (apart or field != _EXPOSED):
            means = (fmean(each[field] for each in side) for side in zip(*known, strict=True))
            yield StepPart(part, "", *means)


def _names(ranks: Sequence[_Rank]) -> list[str]:
    """Return the coordinates in which ``ranks`` differ, such as ``replica 1, stage 0``."""
    differ = [len(set(column)) > 1 for column in zip(*ranks, strict=True)]
    return [
        ", ".join(
            f"{axis} {at}"
            for axis, at, differs in zip(_COORDINATES, rank, differ, strict=True)
            if differs
        )
        for rank in ranks
    ]


def _measured(log: Log) -> dict[_Rank, _Seconds]:
    """Return the mean seconds of a step by rank; empty if the log lacks a rank."""
    totals: dict[_Rank, _Seconds] = {}
    total_steps = 0
    for stages, steps in _blocks(log):
        ranks = dict(filter(None, map(_rank, stages)))
        if len(ranks) != len(stages) or (totals and ranks.keys() != totals.keys()):
            return {}
        total_steps += steps
        for rank, seconds in ranks.items():
            sums = totals.setdefault(rank, defaultdict(float))
            for field, value in seconds.items():
                sums[field] += value
    return {
        rank: {field: value / total_steps for field, value in seconds.items()}
        for rank, seconds in sorted(totals.items())
    }


def _blocks(log: Log) -> Iterator[tuple[list[object], int]]:
    """Yield the facts of the ranks of each block, and its number of steps."""
    stages: list[object] = []
    entries = [*log.all(keys.TRACKED_STATS), *log.all(keys.BLOCK_STOP)]
    for entry in sorted(entries, key=attrgetter("line")):
        if entry.key == keys.BLOCK_STOP:
            steps = whole(entry.metadata.get("steps"), 1, COUNT_CAP)
            if steps is not None and stages:
                yield stages, steps
            stages = []
        elif isinstance(entry.value, dict) and isinstance(entry.value.get("stages"), list):
            stages = entry.value["stages"]


def _rank(stated: object) -> tuple[_Rank, _Seconds] | None:
    """Return coordinates and seconds of a rank in a block; None if anything in it is wrong."""
    if not isinstance(stated, dict):
        return None
    rank = [whole(stated.get(axis, 0), 0, DEVICES_CAP) for axis in _COORDINATES]
    needed = {field for field in _FIELDS.values() if field != _EXPOSED or field in stated}
    seconds = _seconds(stated, needed)
    known = tuple(at for at in rank if at is not None)
    return None if seconds is None or len(known) < len(rank) else (known, seconds)


def _projected(stated: object) -> dict[int, _Seconds]:
    """Return the seconds of a step by pipeline rank; empty if anything in them is wrong."""
    ranks: dict[int, _Seconds] = {}
    for each in stated if isinstance(stated, list) else []:
        stage = whole(each.get("stage"), 0, DEVICES_CAP) if isinstance(each, dict) else None
        seconds = _seconds(each, set(_FIELDS.values()) - {"input_s"}) if stage is not None else None
        if stage is None or seconds is None:
            return {}
        ranks[stage] = seconds | {"input_s": 0.0}  # which no projection has
    return ranks


def _seconds(stated: Mapping[str, object], fields: Iterable[str]) -> _Seconds | None:
    found = {field: number(stated.get(field), 0, _LONGEST_S) for field in fields}
    known = {field: float(value) for field, value in found.items() if value is not None}
    return known if len(known) == len(found) else None


def _source(stated: object) -> str:
    """Return the origin of a projection in words; "" if it is not as docs/log.md says."""
    kind = stated.get("kind") if isinstance(stated, dict) else None
    if kind == "device model":
        return "a model of the device"
    date = stated.get("date") if isinstance(stated, dict) else None
    if kind != "profile" or not isinstance(date, str) or not _DATE.fullmatch(date):
        return ""
    return f"a profile of {date}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


class Hint(NamedTuple):
    """What is wrong, as `hybridperf doctor` says it."""

    name: str
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail} -> {self.remedy}"


class _Cause(NamedTuple):
    name: str
    detail: Callable[[StepComparison], str | None]  #: None if it is not the cause
    remedy: str


def why_slow(comparison: StepComparison | None) -> Hint | None:
    """Return a hint if a step takes `MUCH_SLOWER` times as long as projected, else None."""
    if comparison is None or comparison.step_s < MUCH_SLOWER * comparison.projected_step_s:
        return None
    return next(
        Hint(cause.name, detail, cause.remedy)
        for cause in _CAUSES
        if (detail := cause.detail(comparison)) is not None
    )


def _stretches(comparison: StepComparison) -> list[tuple[float, str]]:
    """Return how many times as long as projected each rank computes, with the rank's name."""
    return [
        (part.measured_s / part.projected_s, part.rank)
        for part in comparison.parts
        if part.name == "computation" and part.projected_s > 0
    ]


def _slow_rank(comparison: StepComparison) -> str | None:
    stretches = _stretches(comparison)
    if len(stretches) < 2:
        return None
    stretch, rank = max(stretches)
    others = median(each for each, name in stretches if name != rank)
    if stretch < MUCH_SLOWER * max(others, 1.0):
        return None
    return f"{rank} computes {stretch:.1f} times as long as projected, others {others:.1f} times"


def _slow_computation(comparison: StepComparison) -> str | None:
    least = min((stretch for stretch, _ in _stretches(comparison)), default=0.0)
    if least < MUCH_SLOWER:
        return None
    return f"every rank computes at least {least:.1f} times as long as projected"


def _mostly(*names: PartName) -> Callable[[StepComparison], str | None]:
    """Return a function that tells whether parts ``names`` explain half of the slowness."""

    def find(comparison: StepComparison) -> str | None:
        parts = [part for part in comparison.parts if part.name in names]
        excess_s = sum(part.excess_s for part in parts)
        if 2 * excess_s < comparison.step_s - comparison.projected_step_s:
            return None
        measured_ms = sum(part.measured_s for part in parts) * 1e3
        projected_ms = sum(part.projected_s for part in parts) * 1e3
        what = " and ".join(names)
        return f"{what} take {measured_ms:,.1f} ms of a step, projected {projected_ms:,.1f} ms"

    return find


def _anything(comparison: StepComparison) -> str:
    stretch = comparison.step_s / comparison.projected_step_s
    return f"a step takes {stretch:.1f} times as long as projected"


_CAUSES: Final = (  # the most specific first
    _Cause(
        "slow rank",
        _slow_rank,
        "See what else runs on its cores or device, and whether these are throttled or of another "
        "kind than the others.",
    ),
    _Cause(
        "oversubscription",
        _slow_computation,
        "Use no more ranks than there are cores or devices, and end other processes that compute.",
    ),
    _Cause(
        "slow links",
        _mostly("waiting", "exposed communication"),
        "See what else uses the links between ranks, and whether they run at the speed of their "
        "class.",
    ),
    _Cause(
        "slow input",
        _mostly("input"),
        "Keep the data on faster storage, or free cores for the processes that read it.",
    ),
    _Cause(
        "slow steps",
        _anything,
        "End other processes, measure this machine again with 'hybridperf plan', and run again.",
    ),
)
