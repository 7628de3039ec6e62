"""Fit links to measured times, and the work that the trainer's runtimes add to steps of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hybridperf.plan.schedules import SCHEDULES
from hybridperf.projection.units import Seconds  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.units import Unit

__all__ = [
    "RUNTIMES",
    "RuntimeWork",
    "averaging_runtime",
    "fit_line",
    "fit_plane",
    "fit_work",
    "pass_runtime",
]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the intercept and the slope of a line through ``points`` (x, y), neither negative.

    The squares of relative errors are least, so that small messages count as much as large ones.

    Raises:
        ValueError: if there are fewer than two different x, or a y that is not positive.
    """
    x, y = np.array(points, dtype=np.float64).T
    if len(set(x.tolist())) < 2 or (y <= 0).any():
        raise ValueError("expected two different sizes or more, all with positive times")
    columns = np.stack([1 / y, x / y], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    if intercept >= 0 and slope >= 0:
        return float(intercept), float(slope)
    # With one of them 0, the other minimises the same sum.
    alone = columns.sum(axis=0) / (columns**2).sum(axis=0)
    return (0.0, float(alone[1])) if intercept < 0 else (float(alone[0]), 0.0)


def fit_plane(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return coefficients, none negative, whose products with ``rows`` come close to ``values``.

    The squares of errors are least among the coefficients that are not 0; while one of these would
    be negative, the one that most decreases the sum is set to 0.
    """
    matrix, wanted = np.array(rows, dtype=np.float64), np.array(values, dtype=np.float64)
    found, free = np.zeros(matrix.shape[1]), list(range(matrix.shape[1]))
    scale = np.abs(matrix).max(axis=0)  # so that small columns count as much as large ones
    while free:
        solved, *_ = np.linalg.lstsq(matrix[:, free] / scale[free], wanted, rcond=None)
        if (solved >= 0).all():
            found[free] = solved / scale[free]
            break
        free.pop(int(solved.argmin()))
    return [float(each) for each in found]


#: what averages gradients, what executes programs, and torch's runtimes of each schedule
RUNTIMES: Final = (
    *("blocking", "overlapped", "sharded", "reducer", "powersgd"),
    *("program", *SCHEDULES),
)


@dataclass(frozen=True, slots=True)
class RuntimeWork:
    """Seconds of a rank that a runtime adds, such as hooks, copies and Python between kernels."""

    name: str  #: of `RUNTIMES`
    step_s: Seconds = 0.0  #: to each step
    unit_s: Seconds = 0.0  #: for each unit whose gradients are averaged
    tensor_s: Seconds = 0.0  #: for each of its parameters
    byte_s: Seconds = 0.0  #: for each byte of them
    pass_s: Seconds = 0.0  #: to each pass of a micro-batch through a stage

    def averaging_s(self, units: Sequence[Unit], often: float = 1.0) -> float:
        """Return the seconds of averaging the gradients of ``units``, so ``often`` in a step."""
        tensors = sum(unit.tensors for unit in units)
        whole = sum(4.0 * unit.parameters for unit in units)
        own_s = self.unit_s * len(units) + self.tensor_s * tensors + self.byte_s * whole
        return self.step_s + often * own_s


def averaging_runtime(plan: PlanFields) -> str | None:
    """Return what averages the gradients of ``plan``; None without replicas.

    ``overlapped`` is DistributedDataParallel, ``sharded`` FSDP, ``reducer`` that of programs, which
    factorizes gradients under ``powersgd``.
    """
    if plan.dp == 1:
        return None
    if plan.zero:
        return "sharded"
    if plan.gradients == "powersgd":
        return plan.gradients
    return "reducer" if plan.delays_or_compresses else plan.sync


def pass_runtime(plan: PlanFields) -> str | None:
    """Return what runs the pipeline of ``plan``: a program, else its schedule; None without."""
    if plan.pp == 1:
        return None
    return "program" if plan.delays_or_compresses else plan.schedule


def fit_work(name: str, steps: Sequence[tuple[Sequence[Unit], float]]) -> RuntimeWork:
    """Return the work of what averages gradients, fitted to ``steps`` of models.

    Those are units, and the seconds that a step of them takes beyond its projection.
    """
    rows = [
        (
            1.0,
            float(len(units)),
            float(sum(unit.tensors for unit in units)),
            float(sum(4 * unit.parameters for unit in units)),
        )
        for units, _ in steps
    ]
    step_s, unit_s, tensor_s, byte_s = fit_plane(rows, [seconds for _, seconds in steps])
    return RuntimeWork(name, step_s, unit_s, tensor_s, byte_s)
