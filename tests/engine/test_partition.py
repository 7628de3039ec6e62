from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.partition import forward_flops, minimax_partition
from hybridperf_reference.models import chain_of

COSTS = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def least_bottleneck(costs: list[int], stages: int) -> int:
    """Try every way to cut."""
    units = len(costs)
    return min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, units), strict=True))
        for cuts in combinations(range(1, units), stages - 1)
    )


@given(costs=COSTS, data=st.data())
def test_no_partition_has_a_smaller_bottleneck(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    cuts = minimax_partition(costs, stages)

    assert max(sum(costs[cut]) for cut in cuts) == least_bottleneck(costs, stages)


@given(costs=COSTS, data=st.data())
def test_stages_are_consecutive_cover_all_units_and_none_is_empty(
    costs: list[int], data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    cuts = minimax_partition(costs, stages)

    assert len(cuts) == stages
    assert [unit for cut in cuts for unit in range(cut.start, cut.stop)] == list(range(len(costs)))
    assert all(cut.start < cut.stop for cut in cuts)


@pytest.mark.parametrize("stages", [0, 4])
def test_more_stages_than_units_are_refused(stages: int) -> None:
    with pytest.raises(ValueError, match=f"3 units cannot make {stages} stages"):
        minimax_partition([1, 2, 3], stages)


def test_flops_of_convolutions_and_the_classifier_are_counted_by_hand() -> None:
    """A multiplication and an addition are two operations; batch norms are not counted."""
    chain = chain_of(find_task("resnet/laptop"), seed=0)

    flops = dict(zip((unit.name for unit in chain.units), forward_flops(chain), strict=True))

    assert flops["stem"] == 2 * 9 * 1 * 16 * 16 * 16
    first = 16 * 16 + 9 * 16 * 16 + 16 * 64 + 16 * 64
    assert flops["layer1.0"] == 2 * first * 16 * 16
    assert flops["head"] == 2 * 512 * 10
