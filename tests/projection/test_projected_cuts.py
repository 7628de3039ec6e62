from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.project import Projection, project, projected_cuts
from hybridperf.projection.units import UnitCounts, UnitTable, UnitTimes
from tests.projection.tables import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.projection.units import UnitTiming

Cuts = tuple[int, ...]

SLOW = Network(8, NetworkLink(1e-4, 1e6))  # a message takes about as long as a pass
BATCH: dict[str, Any] = {"global_batch_size": 24, "optimizer": "sgd"}
PLANS = (
    "pp=2,microbatches=4",
    "pp=3,microbatches=3",
    "pp=4,microbatches=6,schedule=gpipe",
    "pp=2,schedule=zbv,microbatches=4",
    "dp=2,pp=2,microbatches=3",
    "dp=2,pp=3,microbatches=4,staleness=1",
)


def drawn(seed: object) -> tuple[UnitTable, UnitTiming]:
    """Return eight to ten units whose times do not go with their FLOPs."""
    draw = random.Random(str(seed))
    count = draw.randint(8, 10)
    forward_s = tuple(draw.uniform(1e-4, 1e-2) for _ in range(count))
    backward_s = tuple(draw.uniform(1, 3) * once_s for once_s in forward_s)
    units = [
        UnitCounts(
            f"u{number}",
            forward_flops=draw.randint(1, 10**6),
            parameter_groups=plain(draw.randint(0, 10**4)),
            output_elements=draw.randint(1, 10**3),
            kept_elements=draw.randint(1, 10**4),
        )
        for number in range(count)
    ]

    def timing(microbatch: int) -> UnitTimes:
        return UnitTimes(microbatch, forward_s, backward_s, 0.0, (1e-5,) * count)

    return UnitTable("drawn", tuple(units), 10), timing


def all_cuts(plan: ParallelPlan, table: UnitTable) -> Iterable[Cuts]:
    return combinations(range(1, len(table.units)), plan.pipeline_stages - 1)


def at(plan: ParallelPlan, table: UnitTable, timing: UnitTiming, cuts: Cuts) -> Projection:
    return project(plan, table, timing, SLOW, cuts=cuts, **BATCH)


@pytest.mark.parametrize("text", PLANS)
def test_cuts_are_those_of_the_shortest_projected_step(text: str) -> None:
    plan, (table, timing) = ParallelPlan.parse(text), drawn(text)

    found = projected_cuts(plan, table, timing, SLOW, **BATCH)

    steps = {cuts: at(plan, table, timing, cuts).step_s for cuts in all_cuts(plan, table)}
    assert steps[found.cuts] == min(steps.values())
    assert steps[found.cuts] < steps[stage_cuts(plan, table.units)]
    assert found == ParallelPlan.parse(str(found)), "the plan's text says it all"
    assert stage_cuts(found, table.units) == found.cuts
    assert (found.cut, found.schedule, found.microbatches) == (
        "minimax",
        plan.schedule,
        plan.microbatches,
    )


def test_of_the_partitions_that_fit_into_memory_the_fastest_is_chosen() -> None:
    plan = ParallelPlan.parse("pp=3,microbatches=6,cut=ampa")
    table, timing = drawn("memory")
    every = {cuts: at(plan, table, timing, cuts) for cuts in all_cuts(plan, table)}
    needs = {cuts: max(each.memory_bytes) for cuts, each in every.items()}
    fastest = min(every, key=lambda cuts: every[cuts].step_s)
    limit = needs[fastest] - 1

    found = projected_cuts(plan, table, timing, SLOW, device_bytes=limit, **BATCH)

    fit = [cuts for cuts in every if needs[cuts] <= limit]
    assert 0 < len(fit) < len(every) - 1
    assert needs[found.cuts] <= limit
    assert every[found.cuts].step_s == min(every[cuts].step_s for cuts in fit)


def test_a_partition_that_fits_is_found_where_there_are_too_many_to_try_all() -> None:
    count = 40
    units = [
        UnitCounts(f"u{n}", 1 if n < 8 else 1000, plain(10**6 if n < 8 else 10), 1, 1)
        for n in range(count)
    ]
    table = UnitTable("wide", tuple(units), 1)
    plan = ParallelPlan.parse("pp=4,microbatches=4")
    times = UnitTimes(6, (1e-3,) * count, (2e-3,) * count, 0.0, (0.0,) * count)

    found = projected_cuts(plan, table, lambda _: times, SLOW, device_bytes=35e6, **BATCH)

    assert max(at(plan, table, lambda _: times, stage_cuts(plan, units)).memory_bytes) > 90e6
    assert max(at(plan, table, lambda _: times, found.cuts).memory_bytes) <= 35e6


def test_no_partition_that_fits_is_an_error_with_the_least_needed() -> None:
    table, timing = drawn("memory")

    with pytest.raises(UserError, match=r"0.00 GB, found at least 0.00 GB; raise pp") as refusal:
        projected_cuts(ParallelPlan.parse("pp=2"), table, timing, SLOW, device_bytes=9, **BATCH)

    assert refusal.value.exit_code is ExitCode.USAGE


def test_a_plan_without_a_pipeline_has_no_cuts() -> None:
    table, timing = drawn("one")
    plan = ParallelPlan.parse("dp=2")

    assert projected_cuts(plan, table, timing, SLOW, **BATCH) == plan
