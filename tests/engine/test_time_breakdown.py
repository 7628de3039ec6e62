from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
import torch

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.timing import PARTS, StepTimer, time_breakdown

CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Ranks(Mesh):
    """A mesh where ``others`` have timed something else."""

    others: tuple[dict[str, float], ...] = ()

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        known = [torch.tensor([other.get(part, 0.0) for part in PARTS]) for other in self.others]
        return [values, *known]


def _timer(**seconds: float) -> StepTimer:
    timer = StepTimer(CPU)
    for name, value in seconds.items():
        timer.count(name, value)
    return timer


def test_every_step_waits_for_the_slowest_loader() -> None:
    timer = _timer(input=3, read=2, prepare=0.5, compute=4, optimizer=1)
    other = {"input": 1, "read": 0.5, "prepare": 0.5, "waiting": 2, "compute": 4, "optimizer": 1}

    spent = time_breakdown(
        timer, samples=100, plan=ParallelPlan.parse("dp=2"), mesh=Ranks(CPU, None, others=(other,))
    )

    assert spent["loader_samples_per_s"] == pytest.approx(100 / 2.5)
    # What the other rank waits for this one's input in its step is no part of it.
    assert spent["compute_samples_per_s"] == pytest.approx(100 / 5)
    assert spent["stages"] == [
        {"replica": 0, "stage": 0, "input_s": 3.0, "waiting_s": 0.0, "compute_s": 4.0}
        | {"exposed_communication_s": 0.0, "optimizer_s": 1.0},
        {"replica": 1, "stage": 0, "input_s": 1.0, "waiting_s": 2.0, "compute_s": 4.0}
        | {"exposed_communication_s": 0.0, "optimizer_s": 1.0},
    ]
    assert spent["bubble"] == pytest.approx(2 / 16)


def test_parts_that_took_no_time_have_no_rate() -> None:
    timer = _timer(input=1, compute=1)

    spent = time_breakdown(timer, samples=10, plan=ParallelPlan.parse("dp=1"), mesh=Mesh(CPU, None))

    assert spent["loader_samples_per_s"] is None
    assert spent["compute_samples_per_s"] == 10


def test_without_a_step_there_are_no_shares() -> None:
    spent = time_breakdown(_timer(), samples=0, plan=ParallelPlan(), mesh=Mesh(CPU, None))

    assert spent["bubble"] is spent["exposed_communication"] is None


@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_a_rank_that_loses_its_processor_between_two_clocks_states_the_same_times(
    monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    """The processor is lost for 5 s just before this reading of ``time.time``."""
    readings = itertools.count()
    now_s = itertools.count(100.0, 1e-6)
    late_s = [0.0]

    def wall_s() -> float:
        late_s[0] += 5.0 * (next(readings) == interrupted)
        return next(now_s) + late_s[0]

    monkeypatch.setattr(time, "time", wall_s)
    timer = StepTimer(CPU, clock=lambda: next(now_s) + late_s[0] - 100.0)
    timer.record(range(1))
    with timer.action("forward", 0, 0):
        pass

    (action,) = timer.actions()

    assert action.start_s == pytest.approx(next(now_s) + late_s[0], abs=1e-4)
