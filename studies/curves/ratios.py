"""Published ratios of throughput on two numbers of devices, and their projections."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.plan import ParallelPlan
from hybridperf.projection.project import project
from hybridperf.projection.systems import find_system
from hybridperf.projection.units import load_units
from hybridperf.tasks.schema import build_rows

if TYPE_CHECKING:
    from hybridperf.projection.project import Projection

__all__ = ["PublishedRatio", "project_on", "projected_ratio", "published_comparisons"]

_FILE: Final = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class PublishedRatio:
    """A published ratio of two throughputs of one task on one kind of system."""

    name: str
    task: str
    system: str
    precision: str
    plan: str
    batch: int  #: global batch size
    base_plan: str
    base_batch: int
    published: float
    source: str


@functools.cache
def published_comparisons() -> tuple[PublishedRatio, ...]:
    """Return all published comparisons."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["comparison"]
    return build_rows(PublishedRatio, rows, path=_FILE.name, at="comparison")


def projected_ratio(comparison: PublishedRatio) -> float:
    """Return the projected throughput of the plan over that of the base."""
    one, base = (
        project_on(comparison.system, comparison.task, comparison.precision, plan, batch)
        for plan, batch in (
            (comparison.plan, comparison.batch),
            (comparison.base_plan, comparison.base_batch),
        )
    )
    return one.samples_per_s / base.samples_per_s


def project_on(system: str, task: str, precision: str, plan: str, batch: int) -> Projection:
    """Return the projection of ``plan``, stated without its precision, on a catalogued system.

    Raises:
        UserError: exit status 2 if system, task or plan is not known, or the device does not
            compute in ``precision``.
    """
    found, units = find_system(system), load_units(task)
    return project(
        ParallelPlan.parse(f"{plan},precision={precision}"),
        units,
        found.timing(units, precision),
        found.network,
        global_batch_size=batch,
        optimizer="sgd",
    )
