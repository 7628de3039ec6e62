from __future__ import annotations

import dataclasses

import pytest
import torch

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Mesh
from hybridperf_reference.engine.time_breakdown import time_breakdown
from hybridperf_reference.engine.timing import PARTS, StepTimer

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
