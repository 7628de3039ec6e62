"""What the time of all ranks was spent on, put together from what each one timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference_impls.engine.timing import PARTS

if TYPE_CHECKING:
    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.timing import StepTimer
    from suite.plan import ParallelPlan

__all__ = ["spent_time"]


def spent_time(
    timer: StepTimer, *, samples: int, plan: ParallelPlan, mesh: Mesh
) -> dict[str, object]:
    """Return the seconds of each rank since the last call, and shares of all; see docs/log.md.

    ``samples`` were trained on since then, by all ranks together.
    Where parameters are sharded or split, communication is spread through the computation, and is
    counted as such: its own time is then not stated.
    """
    own = timer.collect()
    # On the device: its collectives library may know no other.
    ranks = mesh.gather(torch.tensor([own[part] for part in PARTS], device=mesh.device))
    apart = not plan.zero and plan.tp == 1
    stages, waiting, exposed, total = [], 0.0, 0.0, 0.0
    loading, training = [], []  # seconds that each rank would take for one without the other
    for rank, values in enumerate(ranks):
        part = dict(zip(PARTS, values.tolist(), strict=True))
        loading.append(part.pop("read") + part.pop("prepare"))
        training.append(part["step"] + part["optimizer"])
        # Timed inside the backward pass, so part of what was taken for computation.
        part["compute"] -= part["exposed_communication"]
        wait = part.pop("step") - part["compute"] - part["exposed_communication"]
        waiting += wait
        exposed += part["exposed_communication"]
        total += wait + sum(part.values())
        if not apart:
            del part["exposed_communication"]
        seconds = {f"{name}_s": round(value, 6) for name, value in part.items()}
        stages.append(_place(rank, plan) | {"waiting_s": round(wait, 6)} | seconds)
    return {
        "stages": stages,
        "bubble": round(waiting / total, 6),
        "exposed_communication": round(exposed / total, 6) if apart else None,
        # Every step waits for the slowest loader.
        "loader_samples_per_s": _rate(samples, max(loading)),
        # The rank that waits longest for input is the one that waits least for others' input.
        "appetite_samples_per_s": _rate(samples, min(training)),
    }


def _rate(samples: int, seconds: float) -> float | None:
    return round(samples / seconds, 3) if seconds > 0 else None


def _place(rank: int, plan: ParallelPlan) -> dict[str, float]:
    """Return the coordinates of ``rank``, as the mesh arranges them."""
    pipeline, tensor = divmod(rank, plan.tp)
    replica, stage = divmod(pipeline, plan.pp)
    place: dict[str, float] = {"replica": replica, "stage": stage}
    return place | {"tensor": tensor} if plan.tp > 1 else place
