"""How many steps and micro-batches to simulate so that the last steps are steady."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan

__all__ = ["fewer_microbatches", "simulated_steps"]

_ROUNDS: Final = 3  #: of as many micro-batches as ranks, after which a pipeline's work is periodic
_MEASURED: Final = 2  #: steps of which the mean is taken


def fewer_microbatches(plan: ParallelPlan, rounds: int = 0) -> ParallelPlan:
    """Return ``plan`` with as many micro-batches as its steady state needs, and ``rounds`` more.

    A round has as many micro-batches as there are ranks. Beyond three of them each round takes the
    same time and keeps no more activations; only with gpipe it keeps more.
    """
    fewest = _ROUNDS * plan.pp + plan.microbatches % plan.pp
    count = min(plan.microbatches, fewest + rounds * plan.pp)
    if plan.stages > 1 and plan.microbatches % plan.pp:  # rounds of another length
        count = plan.microbatches
    if plan.staleness and plan.dp > 1:  # averages may take as long as all passes of a step
        count = plan.microbatches
    return replace(plan, microbatches=count)


def simulated_steps(plan: ParallelPlan) -> tuple[range, range]:
    """Return the steps to simulate, and those of them whose mean is the steady state.

    The first ones fill the pipeline and the versions of the weights; the last one drains it. The
    first stage may go on for as many steps before it waits for later ones that average longer.
    """
    fill = plan.staleness * (1 + (plan.pp > 1)) + -(-(plan.pp - 1) // plan.microbatches) * (
        not plan.flush
    )
    return range(fill + 2 + _MEASURED), range(fill + 1, fill + 1 + _MEASURED)
