"""The timeline of a step: when the ranks of a pipeline did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf.log import keys
from hybridperf_reference.engine.timing import ACTIONS, RecordedAction

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["gather_timeline", "recorded_steps"]


def recorded_steps(steps: range, plan: ParallelPlan) -> range:
    """Return the last of ``steps``, or the last two where passes of two are in flight at once.

    The range is empty if they have more actions than a log should hold.
    """
    recorded = steps[-1:] if plan.flush else steps[-2:]
    return (
        recorded if len(recorded) * _most_actions(plan) * plan.pp <= keys.TIMELINE_CAP else range(0)
    )


def _most_actions(plan: ParallelPlan) -> int:
    """Return the most actions of a rank in a step: three passes a micro-batch, and the update."""
    return 3 * plan.stages * plan.microbatches + 1


def gather_timeline(timer: StepTimer, plan: ParallelPlan, mesh: Mesh) -> list[dict[str, object]]:
    """Return the recorded actions of each rank of this rank's pipeline, as the log states them.

    A collective over the ranks of the pipeline. Seconds count from the first action of any of them;
    those of several machines are as comparable as the machines' clocks.
    """
    own = timer.actions()
    rows = torch.zeros(2 * _most_actions(plan), len(RecordedAction._fields), dtype=torch.float64)
    for number, action in enumerate(own):
        rows[number] = torch.tensor(
            [ACTIONS.index(action.kind) + 1, *action[1:]], dtype=torch.float64
        )
    everyone = [rows]
    if mesh.pp_group is not None:
        rows = rows.to(mesh.device)
        everyone = [torch.empty_like(rows) for _ in range(plan.pp)]
        dist.all_gather(everyone, rows, group=mesh.pp_group)
    actions = [[each for each in rank.tolist() if each[0]] for rank in everyone]
    origin_s = min((each[4] for rank in actions for each in rank), default=0.0)
    return [
        {
            "rank": number,
            "actions": [
                [
                    ACTIONS[int(kind) - 1],
                    *map(int, where),
                    *(round(at_s - origin_s, 6) for at_s in (start_s, stop_s)),
                ]
                for kind, *where, start_s, stop_s in rank
            ],
        }
        for number, rank in enumerate(actions)
    ]
