"""Cut a pipeline where its step is projected to be shortest on a system."""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.ampa import Outcome, best_cuts
from hybridperf.projection.bounds import plan_at_least_s
from hybridperf.projection.costs import plan_costs
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.project import project

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.search import Work

__all__ = ["projected_cuts"]


def projected_cuts(plan: ParallelPlan, work: Work) -> ParallelPlan:
    """Return ``plan`` with the ``cuts`` by which `project` puts its step lowest.

    They are stated in the plan's text, which so says what was trained without the times of a
    device. No rank needs more memory than a device has. The search, which is that of `best_cuts`,
    begins with the best of the exact partitions by FLOPs, by parameters and by times, and that of
    the plan.

    Raises:
        UserError: exit status 2 if no partition that was tried fits into the memory of a device.
    """
    if plan.pp == 1:
        return plan
    units, limit = work.units.units, work.device_bytes
    times = work.timing(work.global_batch_size // (plan.dp * plan.microbatches))

    def outcome(cuts: tuple[int, ...]) -> Outcome:
        projection = project(
            plan,
            work.units,
            work.timing,
            work.network,
            global_batch_size=work.global_batch_size,
            optimizer=work.optimizer,
            cuts=cuts,
            clips=work.clips,
        )
        needed = max(projection.memory_bytes)
        return Outcome(0 if limit is None else max(0, needed - limit), projection.step_s)

    def at_least_s(cuts: tuple[int, ...]) -> float:
        priced = plan_costs(plan, work.units, times, work.network, cuts, clips=work.clips)
        return plan_at_least_s(plan, priced.costs)

    allowed = [unit.begins_stage for unit in units]
    both_s = list(map(add, times.forward_s, times.backward_s))
    default = FIELDS["cut"].default
    starts = {
        stage_cuts(plan, units),
        stage_cuts(replace(plan, cut=default, cuts=()), units),
        stage_cuts(replace(plan, cut="parameters", cuts=()), units),
        partition("minimax", both_s, plan.pipeline_stages, allowed),
    }
    places = [place for place in range(1, len(units)) if allowed[place]]
    start = min(sorted(starts), key=outcome)
    cuts, (excess_bytes, _) = best_cuts(outcome, at_least_s, places, start)
    if limit is not None and excess_bytes:
        finding = Finding(
            "plan.cut",
            f"cuts by which each device needs at most {limit / 1e9:.3g} GB",
            f"at least {(limit + excess_bytes) / 1e9:.3g} GB",
            "raise pp, or add zero or recompute",
            path=f"plan {str(plan)!r}",
        )
        raise UserError(finding, ExitCode.USAGE)
    return replace(plan, cut=default, cuts=cuts)
