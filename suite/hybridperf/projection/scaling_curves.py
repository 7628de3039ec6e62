"""Project the throughput of the full-size models on 8 to 4,096 devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hybridperf.projection.comparisons import project_on

__all__ = ["BATCH", "PRECISION", "ScalingCurve", "ScalingPoint", "scaling_curves"]

PRECISION: Final = "bf16"
BATCH: Final = 65_536  #: global: what an optimizer for large batches still learns from
#: task -> most samples of a micro-batch; more are accumulated
_SAMPLES: Final = {
    "resnet50/cluster": 128,
    "resnet152/cluster": 64,
    "vgg/cluster": 64,
    "vit/cluster": 64,
    "bert_large/cluster": 16,
}
_SYSTEMS: Final = ("a100-pcie", "a100-sxm", "h100-sxm", "b200")
_DEVICES: Final = tuple(2**power for power in range(3, 13))


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A projection on one number of devices."""

    devices: int
    samples_per_s: float
    efficiency: float  #: throughput over that of one device times their number


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Projections of one task on one kind of system, of one global batch on more and more devices.

    Gradients are averaged during the last backward pass of a step.
    """

    task: str
    system: str
    samples: int  #: most of a micro-batch
    points: tuple[ScalingPoint, ...]


def scaling_curves() -> list[ScalingCurve]:
    """Return the curves of all full-size models on several systems, by task."""
    return [_curve(task, system) for task in _SAMPLES for system in _SYSTEMS]


def _curve(task: str, system: str) -> ScalingCurve:
    alone = _samples_per_s(task, system, 1)
    points = []
    for devices in _DEVICES:
        rate = _samples_per_s(task, system, devices)
        points.append(ScalingPoint(devices, rate, rate / (devices * alone)))
    return ScalingCurve(task, system, _SAMPLES[task], tuple(points))


def _samples_per_s(task: str, system: str, devices: int) -> float:
    count = max(1, BATCH // devices // _SAMPLES[task])
    plan = f"dp={devices},microbatches={count}"
    return project_on(system, task, PRECISION, plan, BATCH).samples_per_s
