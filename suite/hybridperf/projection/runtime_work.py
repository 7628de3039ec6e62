"""What runtimes add to passes and messages: work of their own, fitted to steps of small models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.plan.schedules import SCHEDULES
from hybridperf.projection.fit import fit_plane
from hybridperf.projection.units import Seconds  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.units import Unit

__all__ = ["RUNTIMES", "RuntimeWork", "averaging_runtime", "fit_work", "pass_runtime"]

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
