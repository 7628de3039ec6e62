"""What the trainer's software adds to passes and to collectives, counted where plans have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.project import project
from tests.projection.tables import FAST, equal_units, timing_of

TABLE = equal_units(4)
TIMING = timing_of(TABLE)  # 1 s and 2 s in each unit
PASS_S, BUCKET_S = 0.1, 0.25


@pytest.mark.parametrize(
    ("plan", "passes", "collectives"),
    [
        ("dp=1", 0, 0),
        ("dp=2,sync=blocking", 0, 1),
        ("dp=2", 0, 1),  # gradients of four units fill no bucket
        ("dp=2,microbatches=2", 0, 1),  # averaged once a step
        ("dp=2,staleness=1", 0, 1),
        ("dp=2,gradients=powersgd", 0, 2),  # two factors
        ("dp=2,zero=1", 0, 4 * 2),
        ("dp=2,zero=2,microbatches=2", 0, 4 * 4),
        ("dp=2,zero=3", 0, 4 * 3),  # gathered twice, scattered once
        ("dp=2,zero=3,microbatches=2", 0, 4 * 6),
        ("pp=2,microbatches=4", 2 * (4 + 1), 0),
        ("pp=2,schedule=gpipe,microbatches=4", 2 * (4 + 1), 0),
        ("pp=2,microbatches=4,links=int8", 2 * (4 + 1), 0),
        ("pp=2,microbatches=4,staleness=1,flush=off", 2 * 4, 0),
        ("dp=2,pp=2,microbatches=4", 2 * (4 + 1), 1),
    ],
)
def test_software_makes_steps_longer(plan: str, passes: int, collectives: int) -> None:
    def step_s(pass_s: float, bucket_s: float) -> float:
        network = replace(FAST, library="gloo", pass_s=pass_s, bucket_s=bucket_s)
        parsed = ParallelPlan.parse(plan)
        found = project(parsed, TABLE, TIMING, network, global_batch_size=64, optimizer="sgd")
        return found.step_s

    added_s = step_s(PASS_S, BUCKET_S) - step_s(0.0, 0.0)
    assert added_s == pytest.approx(passes * PASS_S + collectives * BUCKET_S, rel=1e-3)
