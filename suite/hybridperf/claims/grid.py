"""Project a claim on a grid of what its source leaves open, point by point.

A source that states a gain seldom states the plan, the base, the system, the batch and the
precision that it was measured with. Each point of the grid is one choice of all of them, and its
reading is the projected ratio of plan and base there. Pipelines are cut where the projected step is
shortest, unless a plan states ``cut`` or ``cuts``. The interval of a reading holds nine of ten
errors of projections.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Final

from hybridperf.claims.verdict import ClaimReading, Evidence
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.search import Work
from hybridperf.projection.systems import accuracy_of, find_system
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridperf.claims.claim import ProjectCheck
    from hybridperf.projection.project import Projection

__all__ = ["project_grid"]

#: names of the conditions that pipelines always have, by field of a plan
_OF_PIPELINES: Final = {"pp": "stages", "microbatches": "micro-batches"}
_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a ratio: a plan on a system."""

    system: str
    precision: str
    samples: int  #: samples on a device
    plan: str


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of the grid: a plan and its base."""

    plan: _Side
    base: _Side


def project_grid(check: ProjectCheck) -> Evidence:
    """Return the projected readings of ``check`` at each point of its grid, in the claim's unit.

    Gains and savings are in percent. Points that a device or a plan rules out are left out, and a
    note says why.

    Raises:
        UserError: exit status 2 if a task, a system or a plan is not known.
    """
    left_out: Counter[str] = Counter()
    grid = list(_points(check, check.plans, check.bases))
    points = list(_possible(check, grid, left_out))
    over_strongest = dict.fromkeys(
        replace(point, base=replace(point.base, plan=base))
        for point in points
        for base in check.strongest
    )
    notes = [check.note] if check.note else []
    notes += _ranges(check, points)
    notes += [
        f"left out, {count} of {len(grid)} points: {reason}" for reason, count in left_out.items()
    ]
    return Evidence(
        readings=tuple(each for point in points for each in _readings(check, point)),
        strongest=tuple(
            each
            for point in _possible(check, over_strongest, Counter())
            for each in _readings(check, point)
        ),
        notes=tuple(notes),
        lacks="" if points else f"no point of the grid can be projected: {'; '.join(left_out)}",
    )


def _points(check: ProjectCheck, plans: Iterable[str], bases: Iterable[str]) -> Iterator[_Point]:
    axes = product(check.systems, check.precisions, check.batches, plans, bases)
    for system, precision, samples, plan, base in axes:
        for base_system in check.base_systems or (system,):
            yield _Point(
                _Side(system, precision, samples, plan),
                _Side(base_system, precision, samples, base),
            )


def _possible(
    check: ProjectCheck, points: Iterable[_Point], left_out: Counter[str]
) -> Iterator[_Point]:
    """Yield the points that can be projected, and count the others in ``left_out`` by reason."""
    for point in points:
        sides = product(check.tasks, (point.plan, point.base))
        if reason := next(filter(None, (_refusal(task, side) for task, side in sides)), ""):
            left_out[reason] += 1
        else:
            yield point


@functools.lru_cache(maxsize=4096)
def _refusal(task: str, side: _Side) -> str:
    """Return why ``side`` cannot be projected, or nothing."""
    device = find_system(side.system).device
    if side.precision not in device.peak_tflops:
        return f"{device.name} has no peak in {side.precision}"
    plan = _plan(side)
    config = find_task(task).training_config(plan.ranks, "gpu", stages=load_units(task).most_stages)
    findings = plan.check(replace(config, global_batch_size=side.samples * plan.ranks))
    return f"{side.plan}: expected {findings[0].expected}" if findings else ""


def _plan(side: _Side) -> ParallelPlan:
    return ParallelPlan.parse(f"{side.plan},precision={side.precision}")


@functools.lru_cache(maxsize=4096)
def _projection(task: str, side: _Side) -> Projection:
    """Return the projection of ``side``, with the best cuts of a pipeline unless it states some."""
    system, units, plan = find_system(side.system), load_units(task), _plan(side)
    timing = system.timing(units, side.precision)
    work = replace(
        Work.of_task(find_task(task), units, timing, system.network),
        global_batch_size=side.samples * plan.ranks,
    )
    states_cuts = re.search(r"\bcuts?\s*=", side.plan)
    return work.project(plan if states_cuts else work.cut(plan))


def _readings(check: ProjectCheck, point: _Point) -> Iterator[ClaimReading]:
    """Yield a reading for each task of ``point``, or one for the mean over a series."""
    groups = [check.tasks] if check.mean_of_tasks else [(task,) for task in check.tasks]
    low, high = _error_factors(point)
    for tasks in groups:
        ratios = [_ratio(check, task, point) for task in tasks]
        plain = check.metric == "memory_saving"  # counted in programs, without unit times
        yield ClaimReading(
            value=_value(check, ratios),
            conditions=dict(_conditions(check, tasks, point)),
            low=None if plain else _value(check, [low * each for each in ratios]),
            high=None if plain else _value(check, [high * each for each in ratios]),
            command=" && ".join(
                _command(task, side) for task in tasks for side in (point.plan, point.base)
            ),
        )


def _ratio(check: ProjectCheck, task: str, point: _Point) -> float:
    plan, base = _projection(task, point.plan), _projection(task, point.base)
    if check.metric == "memory_saving":
        return max(plan.memory_bytes) / max(base.memory_bytes)
    return plan.samples_per_s / base.samples_per_s


def _value(check: ProjectCheck, ratios: Iterable[float]) -> float:
    """Return the mean of ``ratios`` in the unit of the claim."""
    ratio = mean(ratios)
    if check.metric == "speedup":
        return ratio
    return _PERCENT * (ratio - 1 if check.metric == "gain" else 1 - ratio)


def _error_factors(point: _Point) -> tuple[float, float]:
    """Return the factors of a projected ratio between which nine of ten measured ratios lie."""
    if point.plan.system != point.base.system:  # errors of two devices do not cancel
        accuracy = accuracy_of("device model")
    else:
        accuracy = find_system(point.plan.system).accuracy or accuracy_of("two plans")
    return 1 / (1 + accuracy.nine_in_ten), 1 / (1 - accuracy.nine_in_ten)


def _conditions(
    check: ProjectCheck, tasks: tuple[str, ...], point: _Point
) -> Iterator[tuple[str, str]]:
    """Yield what the reading of ``point`` holds for, by name."""
    if len(check.tasks) > 1:
        yield "task", " and ".join(tasks)
    yield "system", point.plan.system
    if check.base_systems:
        yield "system of the base", point.base.system
    yield "precision", point.plan.precision
    yield "samples on a device", str(point.plan.samples)
    plan, plans = ParallelPlan.parse(point.plan.plan), list(map(ParallelPlan.parse, check.plans))
    for name, field in FIELDS.items():
        values = {getattr(each, name) for each in plans}
        of_pipeline = name in _OF_PIPELINES and any(each.pp > 1 for each in plans)
        if of_pipeline or (len(values) > 1 and name != "dp"):
            value = getattr(plan, name)
            yield _OF_PIPELINES.get(name, name), "none" if value is None else field.word(value)
    yield "base", point.base.plan
    yield "memory of a device", "enough" if _fits(tasks, point) else "too little"


def _fits(tasks: tuple[str, ...], point: _Point) -> bool:
    """Return whether a device has the memory that plan and base need."""
    return all(
        max(_projection(task, side).memory_bytes)
        <= (find_system(side.system).memory_bytes or float("inf"))
        for task, side in product(tasks, (point.plan, point.base))
    )


def _command(task: str, side: _Side) -> str:
    """Return the command that shows the projected step of ``side``, with its cuts."""
    plan = _projection(task, side).plan
    return (
        f"hybridperf plan {task} --devices {plan.ranks} --system {side.system} "
        f"--set training.global_batch_size={side.samples * plan.ranks} --plan {plan}"
    )


def _ranges(check: ProjectCheck, points: list[_Point]) -> Iterator[str]:
    """Yield the ranges of readings by system and task, and of alternatives over the first base."""
    groups = [check.tasks] if check.mean_of_tasks else [(task,) for task in check.tasks]
    first = check.bases[:1]
    others = list(_possible(check, _points(check, check.alternatives, first), Counter()))
    for tasks, system in product(groups, check.systems):
        here = [each for each in points if each.plan.system == system]
        if not here:
            continue
        parts = [f"{_range(check, tasks, here)} times the base at {len(here)} points"]
        for plan, base in product(check.alternatives, first):
            beside = [
                each for each in others if (each.plan.system, each.plan.plan) == (system, plan)
            ]
            if beside:
                parts.append(f"{plan} over {base}: {_range(check, tasks, beside)}")
        yield f"{' and '.join(tasks)} on {system}: {'; '.join(parts)}"
    if len(points) > 1:
        yield (
            "a stated value inside such a range is consistent with the grid, which does not "
            "identify the point that it was measured at"
        )


def _range(check: ProjectCheck, tasks: tuple[str, ...], points: Iterable[_Point]) -> str:
    """Return the range of ratios, such as ``0.86 to 1.52``; means over ``tasks``."""
    ratios = [mean(_ratio(check, task, point) for task in tasks) for point in points]
    low, high = (f"{each:.2f}" for each in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"
