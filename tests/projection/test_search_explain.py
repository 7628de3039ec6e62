"""Why one plan is projected to be slower than another, in one sentence."""

from __future__ import annotations

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.project import Projection, duration, parts_of, why_slower


def projected(plan: str, step_s: float, *, idle: float = 0.0, exposed_s: float = 0.0) -> Projection:
    """Return a projection of which the rest of the step is computing."""
    return Projection(
        plan=ParallelPlan.parse(plan),
        cuts=(),
        step_s=step_s,
        samples_per_s=32 / step_s,
        busy_s=(step_s * (1 - idle) - exposed_s,),
        exposed_s=(exposed_s,),
        averaging_s=(0.0,),
        memory=(),
        sent_bytes={},
        timeline=None,
    )


def test_parts_add_up_to_the_step() -> None:
    parts = parts_of(projected("dp=2", 2.0, idle=0.25, exposed_s=0.5))

    assert list(parts.values()) == [1.0, 0.5, 0.5]
    assert sum(parts.values()) == 2.0


@pytest.mark.parametrize(
    ("slower", "said"),
    [
        (
            projected("pp=2", 0.012, idle=0.25, exposed_s=0.001),
            "takes 2 ms (20.0%) longer, mostly waiting for other stages: 3 ms a step against 0 us.",
        ),
        (
            projected("pp=2", 0.012, exposed_s=0.004),
            ("takes 2 ms (20.0%) longer, mostly exposed communication: 4 ms a step against 1 ms."),
        ),
        (
            projected("pp=2", 0.015),
            "takes 5 ms (50.0%) longer, mostly computing: 15 ms a step against 9 ms.",
        ),
        (projected("pp=2", 0.010005), "is projected to take as long."),
    ],
)
def test_the_part_that_grew_most_is_named(slower: Projection, said: str) -> None:
    faster = projected("dp=2", 0.010, exposed_s=0.001)

    assert why_slower(slower, faster) == f"{slower.plan} {said}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7300.0, "2.03 h"),
        (90.0, "1.5 min"),
        (1.0, "1 s"),
        (0.1234, "123 ms"),
        (0.00001234, "12.3 us"),
        (0.0, "0 us"),
        (36_000_000.0, "10,000 h"),
    ],
)
def test_durations_have_three_digits_and_their_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
