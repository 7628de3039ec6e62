"""The regret of the planner's choice, from timings that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.cli import planning
from hybridperf.plan import ParallelPlan
from hybridperf.system.accelerators import Devices
from tests.cli.test_plan import profile_of
from tests.performance import regret

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FASTEST = "dp=2,microbatches=2"


def test_every_valid_plan_is_timed_and_the_fastest_again_with_the_picked_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "measure_profile", profile_of)
    monkeypatch.setattr(planning, "usable_devices", lambda: Devices("cpu", 2, "a processor"))
    asked: list[tuple[list[str], bool, int]] = []

    def timed(
        _task: str, plans: list[str], _folder: Path, *, in_turn: bool, times: int, steps: int
    ) -> dict[str, list[float]]:
        asked.append((plans, in_turn, times * steps))
        return {
            plan: [(0.010 if plan == FASTEST else 0.012) * (1 + turn) for turn in range(times)]
            for plan in plans
        }

    monkeypatch.setattr(regret, "_timed", timed)

    row = regret.row("resnet/laptop", turns=4)

    (every, _, few), (finalists, in_turn, more) = asked
    assert (few, in_turn, more) == (6, True, 40)
    assert len(every) == len(set(every)) >= 54
    assert all(ParallelPlan.parse(plan).ranks == 2 for plan in every)
    assert {"dp=2,zero=3", "pp=2,schedule=zbv,microbatches=4"} <= {*every}
    assert finalists[1] == FASTEST
    assert f"| resnet/laptop | {len(every)} | `{finalists[0]}` |" in row
    assert f"`{FASTEST}` | 25.0 ms | +20.0% (+20.0% to +20.0%) |" in row
