"""Compare the steps of a run with what was projected for them before it started.

Both are read from the log, which may come from anyone: what is not as docs/log.md says is unknown.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.log import keys
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hybridperf.log.log import Log

__all__ = ["BesideProjection", "Part", "PartName", "beside_projection", "mean_beside_projection"]

PartName = Literal["computation", "waiting", "exposed communication", "update", "input"]

_EXPOSED: Final = "exposed_communication_s"
_FIELDS: Final[dict[PartName, str]] = {  #: of ranks in the log
    "computation": "compute_s",
    "waiting": "waiting_s",
    "exposed communication": _EXPOSED,
    "update": "optimizer_s",
    "input": "input_s",
}
_COORDINATES: Final = ("replica", "stage", "tensor")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHORTEST_S: Final = 1e-9  #: step that is projected
_LONGEST_S: Final = 1e9  #: of anything in a block

_Seconds = dict[str, float]  # by field


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step: the computation of one rank, or what all ranks do in the mean."""

    name: PartName
    rank: str  #: coordinates that tell it from others; "" for the mean of all, or the only one
    measured_s: float
    projected_s: float

    @property
    def excess_s(self) -> float:
        """Return by how much more was measured than projected."""
        return self.measured_s - self.projected_s


@dataclass(frozen=True, slots=True)
class BesideProjection:
    """The mean step of a run, or of several, beside the projected one."""

    step_s: float  #: by the steady throughput
    projected_step_s: float
    projected_samples_per_s: float
    source: str  #: of the times that it is projected from, in words; "" if unknown
    parts: tuple[Part, ...]  #: empty if the log does not state those of all ranks

    @property
    def share(self) -> float:
        """Return the measured rate over the projected one."""
        return self.projected_step_s / self.step_s

    @property
    def largest_difference(self) -> Part | None:
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


def beside_projection(log: Log, steady_samples_per_s: float) -> BesideProjection | None:
    """Return the steps of a run beside their projection; None if either is unknown."""
    entry = log.first(keys.PROJECTION)
    batch = whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
    if entry is None or not isinstance(entry.value, dict) or batch is None:
        return None
    projected_s = number(entry.value.get("step_s"), _SHORTEST_S, _LONGEST_S)
    if projected_s is None or not batch / _LONGEST_S <= steady_samples_per_s <= batch / _SHORTEST_S:
        return None
    return BesideProjection(
        step_s=batch / steady_samples_per_s,
        projected_step_s=projected_s,
        projected_samples_per_s=batch / projected_s,
        source=_source(entry.value.get("source")),
        parts=tuple(_parts(_measured(log), _projected(entry.value.get("ranks")))),
    )


def mean_beside_projection(runs: Sequence[BesideProjection]) -> BesideProjection | None:
    """Return the mean of ``runs`` of one plan, with the parts that all of them have."""
    if not runs:
        return None
    every = [{(part.name, part.rank): part for part in run.parts} for run in runs]
    shared = [key for key in every[0] if all(key in each for each in every)]
    return BesideProjection(
        step_s=fmean(run.step_s for run in runs),
        projected_step_s=fmean(run.projected_step_s for run in runs),
        projected_samples_per_s=fmean(run.projected_samples_per_s for run in runs),
        source=runs[0].source if len({run.source for run in runs}) == 1 else "",
        parts=tuple(
            Part(
                *key,
                measured_s=fmean(each[key].measured_s for each in every),
                projected_s=fmean(each[key].projected_s for each in every),
            )
            for key in shared
        ),
    )


_Rank = tuple[int, ...]  # its coordinates


def _parts(measured: dict[_Rank, _Seconds], projected: dict[int, _Seconds]) -> Iterator[Part]:
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
        yield Part("computation", name, own["compute_s"], theirs["compute_s"])
    for part, field in _FIELDS.items():
        if known and part != "computation" and (apart or field != _EXPOSED):
            means = (fmean(each[field] for each in side) for side in zip(*known, strict=True))
            yield Part(part, "", *means)


def _names(ranks: Sequence[_Rank]) -> list[str]:
    """Return what tells each of ``ranks`` from the others, such as ``replica 1, stage 0``."""
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
    """Return the mean seconds of a step by rank; empty if the log does not state those of all."""
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
    """Yield what each block states of its ranks, and its steps, which its end states."""
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
    """Return in words what a projection is from; "" if it is not as docs/log.md says."""
    kind = stated.get("kind") if isinstance(stated, dict) else None
    if kind == "device model":
        return "a model of the device"
    date = stated.get("date") if isinstance(stated, dict) else None
    if kind != "profile" or not isinstance(date, str) or not _DATE.fullmatch(date):
        return ""
    return f"a profile of {date}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
