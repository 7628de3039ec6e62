"""Compute the scaling efficiency of results relative to the one with the fewest devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.score.interval import Interval
from hybridperf.score.scaling.speed import METRICS, Metric, speed, speed_ratio_interval
from hybridperf.score.scaling.split import CAUSES, SAMPLES, Split, split_efficiency

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.score.scaling.side import Side

__all__ = ["Efficiency", "Kind", "Scaled", "Scaling", "scale"]

#: strong: constant global batch size; weak: constant batch size per device
Kind = Literal["strong", "weak", "neither", "unknown"]
Standing = Literal["rated", "oversubscribed", "super-linear", "unknown"]
_ALIKE: Final = 1e-9  #: relative tolerance for equal quotients


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The speedup over the base divided by the ratio of device counts, by one metric."""

    metric: Metric
    value: float | None
    interval: Interval | None  #: 95 % confidence interval; the upper bound may be infinite
    standing: Standing
    why: str = ""  #: reason if unrated, or explanation if above 100 %

    @property
    def rated(self) -> bool:
        """Tell whether the efficiency is valid for a claim."""
        return self.standing == "rated"

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Return the interval's bounds for JSON; None if unknown or infinite."""
        if self.interval is None:
            return None, None
        high = self.interval.high
        return self.interval.low, high if math.isfinite(high) else None


@dataclass(frozen=True, slots=True)
class Scaled:
    """The scaling efficiencies of one result relative to its base."""

    base: Side
    side: Side
    kind: Kind
    efficiencies: tuple[Efficiency, ...]  #: one for each of `METRICS`
    split: Split | None  #: of the efficiency by time to train
    cause: str | None  #: stated cause of super-linear scaling
    notes: tuple[str, ...]

    @property
    def rated(self) -> list[Efficiency]:
        """Return the efficiencies that are valid for a claim."""
        return [each for each in self.efficiencies if each.rated]


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling of one task over several device counts."""

    base: Side
    results: tuple[Scaled, ...]  #: sorted by number of devices


def scale(
    sides: Sequence[Side],
    *,
    kind: Literal["strong", "weak"] | None = None,
    cause: str | None = None,
) -> Scaling:
    """Compare ``sides`` with their base, the first one with the fewest devices.

    ``kind`` is the required kind of scaling; None accepts either. ``cause`` is the stated cause of
    efficiencies above 100 %.

    Raises:
        UserError: exit status 2 if there are fewer than two results, if they differ in task,
            target or version, if one has as many devices as the base, if they are not of ``kind``,
            or if ``cause`` is unknown.
    """
    if cause is not None and cause not in (SAMPLES, *CAUSES):
        expected = f"a cause out of {', '.join((SAMPLES, *CAUSES))}"
        _refuse(expected, repr(cause), "name what the split shows")
    if len(sides) < 2:
        _refuse("results on two numbers of devices or more", f"{len(sides)}", "name another result")
    base = min(sides, key=lambda side: side.devices.used)  # ties: the first
    others = sorted(
        (side for side in sides if side is not base), key=lambda side: side.devices.used
    )
    for side in others:
        _require_alike(base, side)
    results = tuple(_scaled(base, side, cause) for side in others)
    for scaled in results:
        if kind is not None and scaled.kind != kind:
            expected = "one global batch" if kind == "strong" else "one batch for each device"
            found = " and ".join(_batch(each) for each in (base, scaled.side))
            remedy = f"drop --{kind}, or make results that differ in devices alone"
            _refuse(f"{expected}, as --{kind} asks for", found, remedy, scaled.side)
    return Scaling(base, results)


def _scaled(base: Side, side: Side, cause: str | None) -> Scaled:
    split = split_efficiency(base, side)
    efficiencies = tuple(_efficiency(base, side, metric, split, cause) for metric in METRICS)
    return Scaled(base, side, _kind(base, side), efficiencies, split, cause, (*_notes(base, side),))


def _efficiency(
    base: Side, side: Side, metric: Metric, split: Split | None, cause: str | None
) -> Efficiency:
    speeds = [speed(each.runs, metric, each.score.drops) for each in (base, side)]
    if speeds[0] is None or speeds[1] is None:
        place = (base, side)[speeds[0] is not None].name
        return Efficiency(metric, None, None, "unknown", f"the logs of {place} do not record it")
    more = side.devices.used / base.devices.used
    value = speeds[1] / speeds[0] / more
    ratio = speed_ratio_interval(base.runs, side.runs, metric, base.score.drops)
    interval = Interval(ratio.low / more, ratio.high / more) if ratio else None
    for each in (base, side):
        if each.devices.oversubscribed:
            why = f"{each.devices.used} ranks share {each.devices.available} {each.devices.kind}"
            return Efficiency(metric, value, interval, "oversubscribed", why)
    if value <= 1 or (interval is not None and interval.low <= 1):
        return Efficiency(metric, value, interval, "rated")
    by_time = metric == "time_to_train"
    gains = [gain for gain in split.gains if by_time or gain != SAMPLES] if split else []
    shown = f"the split shows gains by {', '.join(gains)}" if gains else "the split shows no gain"
    if cause is None:
        return Efficiency(metric, value, interval, "super-linear", shown)
    if split is None or cause not in gains or split.without(cause, samples=by_time) > 1 + _ALIKE:
        why = f"{cause} does not explain it: {shown}"
        return Efficiency(metric, value, interval, "super-linear", why)
    return Efficiency(metric, value, interval, "rated", f"super-linear by {cause}")


def _kind(base: Side, side: Side) -> Kind:
    if base.batch_size is None or side.batch_size is None:
        return "unknown"
    if base.batch_size == side.batch_size:
        return "strong"
    each = [one.batch_size / one.devices.used for one in (base, side) if one.batch_size]
    return "weak" if abs(each[1] / each[0] - 1) < _ALIKE else "neither"


def _require_alike(base: Side, side: Side) -> None:
    one, other = base.score, side.score
    if one.benchmark != other.benchmark:
        expected = f"a result of {one.benchmark!r:.80}, as the base is"
        _refuse(expected, f"one of {other.benchmark!r:.80}", "scale results of one task", side)
    if one.target != other.target:
        expected = f"the quality target {one.target}, as the base has"
        _refuse(expected, f"{other.target}", "scale results of one target", side)
    if base.task != side.task:
        expected = "the version of the task, and the data, that the base has"
        _refuse(expected, "another", "scale results of one version", side)
    if base.devices.used == side.devices.used:
        expected = f"more devices than the {base.devices.used} of the base {base.name}"
        _refuse(expected, f"{side.devices.used}", "'hybridperf compare' compares equals", side)
    if base.devices.kind != side.devices.kind:
        _refuse(f"{base.devices.kind}, as in the base", side.devices.kind, "scale one kind", side)


def _notes(base: Side, side: Side) -> Iterator[str]:
    if base.software[0] != side.software[0]:
        software = [each.software[0] or "unknown" for each in (base, side)]
        yield f"other software: {', then '.join(software)}"
    if base.software[1:] != side.software[1:]:
        yield "other code of the harness or the trainer"
    if base.hardware != side.hardware:
        yield f"other devices: {base.hardware or 'unknown'}, then {side.hardware or 'unknown'}"
    if base.score.division != side.score.division:
        divisions = (base.score.division, side.score.division)
        yield f"other division: {' and '.join(each or 'unknown' for each in divisions)}"
    if _kind(base, side) == "neither":
        yield f"neither strong nor weak scaling: {_batch(base)}, then {_batch(side)}"


def _batch(side: Side) -> str:
    if side.batch_size is None:
        return "an unknown batch"
    each = side.batch_size / side.devices.used
    return f"a batch of {side.batch_size}, {each:g} for each of {side.devices.used} devices"


def _refuse(expected: str, found: str, remedy: str, side: Side | None = None) -> NoReturn:
    place = side.package.name if side else ""
    raise UserError(Finding("scale.results", expected, found, remedy, place), ExitCode.USAGE)
