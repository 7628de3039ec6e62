"""Take from published results what projecting their throughput needs."""

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
from studies.rounds.described import described_links
from studies.rounds.project import Published, projectable_benchmarks

if TYPE_CHECKING:
    from hybridperf.log.package import Package, Result
    from hybridperf.score.scaling import Side

__all__ = ["NotProjected", "is_projectable", "published_system"]

#: steady over end-to-end throughput, or the reverse: more if evaluations were logged at other times
#: than they were made
_MOST_APART: Final = 2.0


@dataclass(frozen=True, slots=True)
class NotProjected:
    """A result that is not projected, and why."""

    place: str  #: of its folder, safe to print
    why: str


def is_projectable(package: Package) -> bool:
    """Tell whether ``package`` is a result of a round in a benchmark that is projected."""
    return bool(edition_of(package)) and package.benchmark in projectable_benchmarks()


def published_system(package: Package) -> Published | NotProjected:
    """Read the published result ``package``: what it ran on, and its steady throughput."""
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
        return "evaluations logged at other times than they were made"
    stated = result.runs[0].log.value(keys.GRADIENT_ACCUMULATION_STEPS)
    micro_batches = whole(stated, 1, COUNT_CAP) or 1
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
        links=described_links(system, device, per_node),
        batch_size=side.batch_size,
        micro_batches=micro_batches,
        samples_per_s=samples_per_s,
    )


def _is_closed(division: object) -> bool:
    """Tell whether ``division``, as logs and descriptions spell it, is the closed one."""
    return isinstance(division, str) and division.strip(" /").casefold() in {"close", "closed"}
