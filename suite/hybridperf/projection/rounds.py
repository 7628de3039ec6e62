"""Project the throughput of published systems from the smallest system of the same maker.

A step of data parallelism on a device takes::

    t = c (b + k h) + r

with b samples of the device in k micro-batches (gradient accumulation), h the benchmark's
``half_batch``, c the seconds of a sample and r those of averaging gradients. The smallest system of
a submitter, device and round gives c; r follows from the links of either system. Nothing is fitted
on what is projected.

Averaging is hierarchical: inside of each node, then among the devices of the same place on all
nodes, each over its part of the node's adapters. It is not hidden behind the backward pass:
optimizers that clip wait for all gradients, and kernels that add gradients up take memory
bandwidth from those that make them.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.projection.collectives import all_reduce
from hybridperf.projection.link import Group
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hybridperf.projection.described import Links

__all__ = [
    "Benchmark",
    "Projected",
    "Published",
    "averaging_s",
    "averaging_share",
    "project_rounds",
    "projectable_benchmarks",
]

_FILE: Final = Path(__file__).with_suffix(".toml")
#: of a step, least share that computes: the links of the base cannot have been as slow as assumed
_LEAST_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark whose results are projected."""

    parameters: int
    gradient_bytes: int  #: of one parameter
    half_batch: float  #: samples
    source: str


@dataclass(frozen=True, slots=True)
class Published:
    """A published result; names are untrusted text."""

    edition: str  #: of the round, such as ``2.1``
    submitter: str
    system: str
    benchmark: str
    device: str  #: as the catalogue names it, or else as described
    devices: int
    devices_per_node: int
    links: Links
    batch_size: int  #: global
    micro_batches: int  #: of a step, on each device
    samples_per_s: float  #: steady throughput

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.batch_size / self.samples_per_s


@dataclass(frozen=True, slots=True)
class Projected:
    """A published result, and what was projected for it."""

    result: Published
    base: Published  #: the result of the maker's smallest system
    samples_per_s: float  #: projected

    @property
    def error(self) -> float:
        """Return projected over published throughput, less 1."""
        return self.samples_per_s / self.result.samples_per_s - 1


def project_rounds(results: Iterable[Published]) -> list[Projected]:
    """Project all results that are larger than the smallest of their maker, device and round.

    Of several smallest ones, the fastest is the base. What a later round repeats is projected once.
    """
    groups: dict[tuple[str, ...], list[Published]] = {}
    for each in results:
        key = (each.benchmark, each.device, each.submitter, each.edition)
        groups.setdefault(key, []).append(each)
    found: dict[tuple[object, ...], Projected] = {}
    for key in sorted(groups):
        for each in _projected(groups[key]):
            one = each.result
            same = (one.benchmark, one.submitter, one.system, one.samples_per_s)
            found.setdefault((*same, each.samples_per_s), each)
    return list(found.values())


def averaging_s(message_bytes: float, devices: int, devices_per_node: int, links: Links) -> float:
    """Return the seconds of averaging ``message_bytes`` of gradients over all ``devices``."""
    own = min(devices, devices_per_node)
    nodes = -(-devices // own)
    inside = all_reduce(message_bytes, Group(own, own, links.inside))
    between = all_reduce(message_bytes / own, Group(nodes, nodes, links.between))
    return inside.seconds + between.seconds


def averaging_share(projected: Projected) -> float:
    """Return the share of the projected step that averages gradients."""
    result = projected.result
    return _averaging_s(result) * projected.samples_per_s / result.batch_size


def _projected(results: Sequence[Published]) -> list[Projected]:
    fewest = min(each.devices for each in results)
    smallest = [each for each in results if each.devices == fewest]
    base = max(smallest, key=lambda each: each.samples_per_s)
    sample_s = max(base.step_s - _averaging_s(base), _LEAST_SHARE * base.step_s) / _work(base)
    larger = sorted((each for each in results if each.devices > fewest), key=_order)
    return [
        Projected(each, base, each.batch_size / (sample_s * _work(each) + _averaging_s(each)))
        for each in larger
    ]


def _order(result: Published) -> tuple[int, str]:
    return result.devices, result.system


def _averaging_s(result: Published) -> float:
    benchmark = projectable_benchmarks()[result.benchmark]
    message_bytes = benchmark.parameters * benchmark.gradient_bytes
    return averaging_s(message_bytes, result.devices, result.devices_per_node, result.links)


def _work(result: Published) -> float:
    """Return a device's samples of a step, and those that its passes take as long as beside."""
    half_batch = projectable_benchmarks()[result.benchmark].half_batch
    return result.batch_size / result.devices + result.micro_batches * half_batch


@functools.cache
def projectable_benchmarks() -> Mapping[str, Benchmark]:
    """Return the benchmarks whose results are projected, by name."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: build(Benchmark, row, path=_FILE.name, at=name) for name, row in table.items()}
