"""Project the throughput of published systems from the smallest system of the same maker.

A step of data parallelism on a device takes::

    t = b c + k l + r

with b samples of the device in k micro-batches (gradient accumulation), c the seconds of a sample,
l the fixed overhead of the passes (small kernels and launches), and r the seconds of the gradient
all-reduce. The smallest system of a submitter, device and round gives c; r follows from the links
of either system; ``rounds.toml`` has l per layer, by the device's generation.

The all-reduce is hierarchical: inside of each node, then among the devices with the same local rank
on all nodes, each over its share of the node's adapters. It is not hidden behind the backward pass:
clipping waits for all gradients, and reduction kernels take memory bandwidth from the backward
pass.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from hybridperf.projection.network import RankGroup, all_reduce
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from studies.rounds.links import Links

__all__ = [
    "Benchmark",
    "Projected",
    "Published",
    "averaging_s",
    "averaging_share",
    "project_rounds",
    "projectable_benchmarks",
]

_FILE: Final = Path(__file__).with_name("rounds.toml")
#: least share of a step that depends on samples, if assumed overheads exceed the base's step
_LEAST_SHARE: Final = 0.1
_PASSES: Final = 3  #: forward plus backward pass, in forward passes


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark with projected results."""

    parameters: int
    gradient_bytes: int  #: bytes of a parameter's gradient
    layers: int  #: number of layers with weights


@dataclass(frozen=True, slots=True)
class Published:
    """A published result; names are untrusted text."""

    edition: str  #: edition of the round, such as ``2.1``
    submitter: str
    system: str
    benchmark: str
    device: str  #: name in the catalogue, or else in the description
    devices: int
    devices_per_node: int
    links: Links
    batch_size: int  #: global batch size
    micro_batches: int  #: micro-batches of a step on each device
    samples_per_s: float  #: steady throughput

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return self.batch_size / self.samples_per_s


@dataclass(frozen=True, slots=True)
class Projected:
    """A published result and its projection."""

    result: Published
    base: Published  #: the result of the maker's smallest system
    samples_per_s: float  #: projected throughput

    @property
    def error(self) -> float:
        """Return projected over published throughput, less 1."""
        return self.samples_per_s / self.result.samples_per_s - 1


def project_rounds(results: Iterable[Published]) -> list[Projected]:
    """Project all results larger than the smallest of their submitter, device and round.

    The fastest of the smallest results is the base. Results repeated by later rounds count once.
    """
    groups: dict[tuple[str, ...], list[Published]] = {}
    for each in results:
        maker = (each.benchmark, each.device, each.submitter, each.edition)
        groups.setdefault(maker, []).append(each)
    found: dict[tuple[object, ...], Projected] = {}
    for _, group in sorted(groups.items(), key=lambda item: item[0]):
        for one in _projected(group):
            result = one.result
            same = (result.benchmark, result.submitter, result.system, result.samples_per_s)
            found.setdefault((*same, one.samples_per_s), one)
    return list(found.values())


def averaging_s(message_bytes: float, devices: int, devices_per_node: int, links: Links) -> float:
    """Return the seconds of an all-reduce of ``message_bytes`` over all ``devices``."""
    own = min(devices, devices_per_node)
    nodes = -(-devices // own)
    inside = all_reduce(message_bytes, RankGroup(own, own, links.inside))
    between = all_reduce(message_bytes / own, RankGroup(nodes, nodes, links.between))
    return inside.seconds + between.seconds


def averaging_share(projected: Projected) -> float:
    """Return the share of the gradient all-reduce in the projected step."""
    result = projected.result
    return _averaging_s(result) * projected.samples_per_s / result.batch_size


def _projected(results: Sequence[Published]) -> list[Projected]:
    fewest = min(each.devices for each in results)
    smallest = [each for each in results if each.devices == fewest]
    base = max(smallest, key=lambda each: each.samples_per_s)
    samples_s = max(base.step_s - _fixed_s(base), _LEAST_SHARE * base.step_s)
    sample_s = samples_s * base.devices / base.batch_size
    larger = sorted((each for each in results if each.devices > fewest), key=_order)
    return [
        Projected(
            each,
            base,
            each.batch_size / (sample_s * each.batch_size / each.devices + _fixed_s(each)),
        )
        for each in larger
    ]


def _order(result: Published) -> tuple[int, str]:
    return result.devices, result.system


def _averaging_s(result: Published) -> float:
    benchmark = projectable_benchmarks()[result.benchmark]
    message_bytes = benchmark.parameters * benchmark.gradient_bytes
    return averaging_s(message_bytes, result.devices, result.devices_per_node, result.links)


def _fixed_s(result: Published) -> float:
    """Return the seconds of a step that do not depend on the samples of a device."""
    layers, by_device = projectable_benchmarks()[result.benchmark].layers, _layer_us()
    layer_s = by_device.get(result.device, by_device["others"]) / 1e6
    return result.micro_batches * _PASSES * layers * layer_s + _averaging_s(result)


@functools.cache
def projectable_benchmarks() -> Mapping[str, Benchmark]:
    """Return the benchmarks with projected results, by name."""
    rows = _table()["benchmark"].items()
    return {name: build(Benchmark, row, path=_FILE.name, at=name) for name, row in rows}


def _layer_us() -> Mapping[str, float]:
    """Return the fixed microseconds of a layer's forward pass, by accelerator."""
    return cast("Mapping[str, float]", _table()["layer_us"])


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
