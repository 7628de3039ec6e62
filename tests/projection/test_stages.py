"""Where units are: stages on ranks, recomputed units, and how far apart the ranks of groups are."""

from __future__ import annotations

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.traffic import Stages, axis_stride
from tests.projection.tables import FAST, equal_units

TABLE = equal_units(8)


@pytest.mark.parametrize(
    ("order", "strides"),
    [
        ("pp-dp-tp", {"pp": 12, "dp": 4, "tp": 1}),
        ("dp-pp-tp", {"dp": 8, "pp": 4, "tp": 1}),
        ("tp-pp-dp", {"tp": 6, "pp": 3, "dp": 1}),
    ],
)
def test_neighbours_are_as_far_apart_as_the_axes_inside_are_large(
    order: str, strides: dict[str, int]
) -> None:
    plan = ParallelPlan.parse(f"dp=3,pp=2,tp=4,order={order}")
    assert {axis: axis_stride(plan, axis) for axis in strides} == strides


def test_shards_are_neighbours_and_their_copies_further_apart() -> None:
    plan = ParallelPlan.parse("dp=16,zero=3,shard=4")
    shard, replicate = Stages(plan, TABLE, []).replica_groups(FAST)
    assert (shard.ranks, shard.ranks_per_node) == (4, 4)
    assert (replicate.ranks, replicate.ranks_per_node) == (4, 2)


def test_a_rank_holds_the_units_of_its_stages() -> None:
    plan = ParallelPlan.parse("pp=2,schedule=zbv,microbatches=3")
    stages = Stages(plan, TABLE, [1, 3, 6])
    assert stages.units_of(0) == [0, 6, 7]
    assert stages.units_of(1) == [1, 2, 3, 4, 5]
    assert stages.rank_of == {0: 0, 3: 0, 1: 1, 2: 1}


def test_every_second_unit_of_each_rank_is_computed_again() -> None:
    plan = ParallelPlan.parse("pp=2,microbatches=2,recompute=2")
    assert Stages(plan, TABLE, [3]).recomputed == {0, 2, 3, 5, 7}


@pytest.mark.parametrize("cuts", [[], [4, 4, 6], [0, 2, 4], [2, 4, 8], [2, 5, 4]])
def test_cuts_that_leave_a_stage_without_units_are_refused(cuts: list[int]) -> None:
    plan = ParallelPlan.parse("pp=4,microbatches=4")
    with pytest.raises(ValueError, match="has 4 stages of 8 units"):
        Stages(plan, TABLE, cuts)
