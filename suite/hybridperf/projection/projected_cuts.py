"""Cut a pipeline where its step is projected to be shortest on a system."""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.ampa import Outcome, best_cuts
from hybridperf.projection.partition import partition, stage_cuts
from hybridperf.projection.project import lower_bound_s, project

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.link import Network
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["projected_cuts"]


def projected_cuts(
    plan: ParallelPlan,
    units: UnitTable,
    timing: UnitTiming,
    network: Network,
    *,
    global_batch_size: int,
    optimizer: str,
    clips: bool = False,
    device_bytes: float = float("inf"),
) -> ParallelPlan:
    """Return ``plan`` with the ``cuts`` by which `project` puts its step lowest.

    They are stated in the plan's text, which so says what was trained without the times of a
    device. No rank needs more than ``device_bytes``. The search, which is that of `best_cuts`,
    begins with the best of the exact partitions by FLOPs, by parameters and by times.

    Raises:
        UserError: exit status 2 if no partition that was tried fits into ``device_bytes``.
    """
    if plan.pp == 1:
        return plan

    def outcome(cuts: tuple[int, ...]) -> Outcome:
        projection = project(
            plan,
            units,
            timing,
            network,
            global_batch_size=global_batch_size,
            optimizer=optimizer,
            cuts=cuts,
            clips=clips,
        )
        return Outcome(max(0.0, max(projection.memory_bytes) - device_bytes), projection.step_s)

    def at_least_s(cuts: tuple[int, ...]) -> float:
        return lower_bound_s(
            plan,
            units,
            timing,
            network,
            global_batch_size=global_batch_size,
            cuts=cuts,
            clips=clips,
        )

    places = [place for place in range(1, len(units.units)) if units.units[place].begins_stage]
    times = timing(global_batch_size // (plan.dp * plan.microbatches))
    starts = (
        stage_cuts(replace(plan, cut="minimax", cuts=()), units.units),
        stage_cuts(replace(plan, cut="parameters", cuts=()), units.units),
        partition(
            "minimax",
            list(map(add, times.forward_s, times.backward_s)),
            plan.pipeline_stages,
            [unit.begins_stage for unit in units.units],
        ),
    )
    cuts, (excess_bytes, _) = best_cuts(outcome, at_least_s, places, min(starts, key=outcome))
    if excess_bytes:
        finding = Finding(
            "plan.cut",
            f"cuts by which each device needs at most {device_bytes / 1e9:.2f} GB",
            f"at least {(device_bytes + excess_bytes) / 1e9:.2f} GB",
            "raise pp, or add zero or recompute",
            path=f"plan {str(plan)!r}",
        )
        raise UserError(finding, ExitCode.USAGE)
    return replace(plan, cut=FIELDS["cut"].default, cuts=cuts)
