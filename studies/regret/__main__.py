"""How much slower than the best of all plans the one picked for two devices is, as measured.

``python -m studies.regret TASK...`` on a quiet machine prints a row of a table for each
task: every valid plan of two ranks that the planner considers (54 to 99, and more where cuts by
time differ) is timed, the fastest of them and the picked one again in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from hybridperf.cli.planning import HERE, setting_of
from hybridperf.projection.search import Candidates, GroupBounds, groups
from hybridperf.tasks.registry import find_task, task_path
from tests.families import LAPTOP
from tests.performance.launch import run_ranks
from tests.performance.pairing import interval

if TYPE_CHECKING:
    from hybridperf.cli.planning import Setting

DEVICES: Final = 2
_FINALISTS: Final = 6
_TURNS: Final = 20
_STEPS: Final = 10  #: in each turn
_FEW_STEPS: Final = 3  #: of what finds the fastest plans, twice


def _every_plan(setting: Setting) -> list[str]:
    work = setting.work
    candidates = Candidates(setting.config, DEVICES, work.network.devices_per_node)
    bounds = GroupBounds(candidates, work.units, work.timing, work.network)
    return [
        str(plan)
        for layout, pipeline in groups(candidates, bounds)
        for plan in candidates.plans(layout, pipeline)
    ]


def _timed(
    task: str, plans: list[str], folder: Path, *, in_turn: bool, times: int, steps: int
) -> dict[str, list[float]]:
    asked = {"task": task, "plans": plans, "in_turn": in_turn, "times": times, "steps": steps}
    file = folder / "asked.json"
    file.write_text(json.dumps(asked))
    first, *_ = run_ranks("studies.regret.worlds", folder, DEVICES, str(file))
    return first


def row(task: str, turns: int) -> str:
    """Return the row of ``task``: picked and best plan, both steps, and the regret."""
    setting = setting_of(task_path(task), find_task(task), system=HERE, devices=DEVICES)
    best = setting.ranking("equivalent", 1).best[0]
    picked, every = str(best.plan), _every_plan(setting)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once = _timed(task, every, folder, in_turn=False, times=2, steps=_FEW_STEPS)
        fastest = sorted(every, key=lambda plan: min(once[plan]))[:_FINALISTS]
        finalists = [*dict.fromkeys([picked, *fastest])]
        timed = _timed(task, finalists, folder, in_turn=True, times=turns, steps=_STEPS)
    winner = min(timed, key=lambda plan: median(timed[plan]))
    ratios = [a / b for a, b in zip(timed[picked], timed[winner], strict=True)]
    middle, low, high = interval(ratios)
    steps = [f"{median(timed[plan]) * 1e3:.1f} ms" for plan in (picked, winner)]
    return (
        f"| {task} | {len(every)} | `{picked}` | {best.step_s * 1e3:.1f} ms | {steps[0]} | "
        f"`{winner}` | {steps[1]} | {middle - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}) |"
    )


def main() -> None:
    """Print the table of the tasks that the command line names, by default all laptop tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=LAPTOP, help="such as resnet/laptop")
    parser.add_argument("--turns", type=int, default=_TURNS, help="of the fastest plans")
    options = parser.parse_args()
    heads = ["task", "plans", "picked", "projected", "measured", "fastest", "measured", "regret"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)  # noqa: T201
    for task in options.tasks:
        print(row(task, options.turns), flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
