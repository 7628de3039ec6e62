"""Read the inputs of a throughput projection from published results."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.log.package import edition_of, read_package
from hybridperf.score.scaling import side_of
from hybridperf.system.catalog import accelerators_per_node, find_accelerator
from hybridperf.untrusted import COUNT_CAP, whole
from studies.rounds.links import links_of_description
from studies.rounds.project import Published, projectable_benchmarks

if TYPE_CHECKING:
    from hybridperf.log.package import Package, Result
    from hybridperf.score.scaling import Side

__all__ = ["NotProjected", "is_projectable", "published_system"]

#: largest ratio of steady and end-to-end throughput; larger if evaluations are logged late
_MOST_APART: Final = 2.0


@dataclass(frozen=True, slots=True)
class NotProjected:
    """A result without a projection, and the reason."""

    place: str  #: folder of the result, safe to print
    why: str


def is_projectable(package: Package) -> bool:
    """Return whether ``package`` is a round's result in a projectable benchmark."""
    return bool(edition_of(package)) and package.benchmark in projectable_benchmarks()


def published_system(package: Package) -> Published | NotProjected:
    """Read system and steady throughput of the published result ``package``."""
    result = read_package(package)
    try:
        published = _published(result, side_of(result))
    except UserError as error:
        found = error.finding
        why = f"expected {found.expected}, found {found.found}" if found else str(error)
        return NotProjected(package.name, why)
    return NotProjected(package.name, published) if isinstance(published, str) else published


def _published(result: Result, side: Side) -> Published | str:
    """Return the data of ``result``, or why it is not projected."""
    system = result.system or {}
    per_node = accelerators_per_node(system)
    if not per_node:
        return "on processors alone"
    if not _is_closed(side.score.division) and not _is_closed(system.get("division")):
        return "not of the closed division, which fixes the model"
    if side.batch_size is None:
        return "no global batch size that all runs share"
    steady = [run.steady_samples_per_s for run in side.runs if run.steady_samples_per_s is not None]
    whole_runs = [rate for run in side.runs if (rate := run.throughput_samples_per_s or 0) > 0]
    if len(steady) < len(side.runs) or not whole_runs:
        return "a run with fewer than two evaluations"
    samples_per_s = fmean(steady)
    if not 1 / _MOST_APART <= samples_per_s / fmean(whole_runs) <= _MOST_APART:
        return "evaluations logged late"
    logged = result.runs[0].log.value(keys.GRADIENT_ACCUMULATION_STEPS)
    micro_batches = whole(logged, 1, COUNT_CAP) or 1
    if side.batch_size < micro_batches * side.devices.used:
        return "micro-batches smaller than the number of devices: not data parallelism alone"
    known = find_accelerator(side.hardware)
    device = known.name if known else side.hardware
    return Published(
        edition=edition_of(result.package),
        submitter=visible(result.package.org),
        system=visible(result.package.system),
        benchmark=result.package.benchmark,
        device=visible(device),
        devices=side.devices.used,
        devices_per_node=per_node,
        links=links_of_description(system, device, per_node),
        batch_size=side.batch_size,
        micro_batches=micro_batches,
        samples_per_s=samples_per_s,
    )


def _is_closed(division: object) -> bool:
    """Return whether ``division``, in any spelling of logs and descriptions, is closed."""
    return isinstance(division, str) and division.strip(" /").casefold() in {"close", "closed"}
