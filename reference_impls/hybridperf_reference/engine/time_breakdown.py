"""Breakdown of training time over all ranks, from the timings of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hybridperf_reference.engine.mesh import coordinates
from hybridperf_reference.engine.timing import PARTS

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["time_breakdown"]


def time_breakdown(
    timer: StepTimer, *, samples: int, plan: ParallelPlan, mesh: Mesh
) -> dict[str, object]:
    """Return each rank's seconds since the last call and shares over all ranks; see docs/log.md.

    A collective over all ranks. ``samples`` is the number trained on since then by all ranks
    together. With sharded or split parameters, communication is interleaved with computation and
    counted as such; exposed communication is then None.
    """
    own = timer.collect()
    # On the device: NCCL supports no other.
    ranks = mesh.gather(torch.tensor([own[part] for part in PARTS], device=mesh.device))
    apart = not plan.zero and plan.tp == 1
    stages, waiting, exposed, total = [], 0.0, 0.0, 0.0
    loading, training = [], []  # seconds of each rank, for each of the two alone
    for rank, values in enumerate(ranks):
        part = dict(zip(PARTS, values.tolist(), strict=True))
        loading.append(part.pop("read") + part.pop("prepare"))
        training.append(part["waiting"] + part["compute"] + part["optimizer"])
        # Timed inside the backward pass, so included in the computation.
        part["compute"] -= part["exposed_communication"]
        waiting += part["waiting"]
        exposed += part["exposed_communication"]
        total += sum(part.values())
        if not apart:
            del part["exposed_communication"]
        seconds = {f"{name}_s": round(value, 6) for name, value in part.items()}
        stages.append(_place(rank, plan) | seconds)
    stages.sort(key=lambda each: [each.get(axis, 0) for axis in ("replica", "stage", "tensor")])
    return {
        "stages": stages,
        "bubble": _share(waiting, total),
        "exposed_communication": _share(exposed, total) if apart else None,
        # The slowest loader limits every step.
        "loader_samples_per_s": _rate(samples, max(loading)),
        # Steps include waiting for ranks whose input is late; the shortest includes the least.
        "compute_samples_per_s": _rate(samples, min(training)),
    }


def _share(seconds: float, total_s: float) -> float | None:
    """Return ``seconds`` over ``total_s``, or None if no time was measured."""
    return round(seconds / total_s, 6) if total_s > 0 else None


def _rate(samples: int, seconds: float) -> float | None:
    """Return samples per second, or None if no time was measured."""
    return round(samples / seconds, 3) if seconds > 0 else None


def _place(rank: int, plan: ParallelPlan) -> dict[str, float]:
    """Return the mesh coordinates of ``rank``, by their names in the log."""
    at = coordinates(plan, rank)
    place: dict[str, float] = {"replica": at["dp"], "stage": at["pp"]}
    return place | {"tensor": at["tp"]} if plan.tp > 1 else place
