from __future__ import annotations

import random
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.partition import minimax, partition, prefix_nearest, stage_cuts
from hybridperf.projection.traffic import Stages
from hybridperf.projection.units import UnitCounts, load_units
from hybridperf.tasks.registry import task_names
from tests.projection.tables import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridperf.projection.partition import Cuts

ALGORITHMS = [minimax, prefix_nearest]
COSTS = st.lists(st.integers(0, 50), min_size=1, max_size=9)
SECONDS = st.lists(st.floats(0, 1e3), min_size=1, max_size=9)


def bottleneck(costs: Sequence[float], cuts: Cuts) -> float:
    sums = [0, *accumulate(costs)]
    return max(sums[high] - sums[low] for low, high in pairwise((0, *cuts, len(costs))))


def every_cuts(units: int, stages: int) -> list[Cuts]:
    return list(combinations(range(1, units), stages - 1))


def random_chain(seed: int) -> tuple[list[float], int]:
    """Return costs of up to twelve units, of many kinds, and a number of stages."""
    draw = random.Random(seed)
    cost = (
        lambda: draw.randint(0, 50),
        lambda: draw.choice([0, 0, 1, 10**12]),
        draw.random,
        lambda: draw.expovariate(1) ** 3,
    )[seed % 4]
    costs = [cost() for _ in range(draw.randint(1, 12))]
    return costs, draw.randint(1, len(costs))


def test_minimax_equals_brute_force_on_1000_random_chains() -> None:
    for seed in range(1000):
        costs, stages = random_chain(seed)

        least = min(bottleneck(costs, cuts) for cuts in every_cuts(len(costs), stages))

        assert bottleneck(costs, minimax(costs, stages)) == least, f"{stages} stages of {costs}"


@given(costs=COSTS, data=st.data())
def test_minimax_fills_early_stages_first(costs: list[int], data: st.DataObject) -> None:
    """Which of the best partitions it is decides what published plans trained."""
    stages = data.draw(st.integers(1, len(costs)))
    cuts = minimax(costs, stages)

    least = bottleneck(costs, cuts)
    best = [each for each in every_cuts(len(costs), stages) if bottleneck(costs, each) == least]

    assert cuts == max(best)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(costs=COSTS | SECONDS, data=st.data())
def test_stages_are_in_order_and_none_is_empty(
    algorithm: Callable[[Sequence[float], int], Cuts], costs: list[float], data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))

    cuts = algorithm(costs, stages)

    assert len(cuts) == stages - 1
    assert all(first < last for first, last in pairwise((0, *cuts, len(costs))))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("stages", [0, 4])
def test_more_stages_than_units_are_refused(
    algorithm: Callable[[Sequence[float], int], Cuts], stages: int
) -> None:
    with pytest.raises(ValueError, match=f"3 units cannot make {stages} stages"):
        algorithm([1, 2, 3], stages)


@pytest.mark.parametrize(
    ("costs", "stages", "cuts"),
    [
        ([1, 1, 1, 1], 2, (2,)),
        ([3, 1, 1, 1], 2, (1,)),  # 3 is the half
        ([1, 2, 1], 2, (1,)),  # 1 and 3 are as far from 2: the earlier
        ([4, 3, 2, 2, 1], 3, (1, 2)),  # 4 and 7 for a third and two thirds of 12, which are 4 and 8
        ([1, 1, 1, 9], 3, (2, 3)),  # 4 is nearest to 3, which leaves the last no unit; then 8 to 3
        ([9, 1, 1, 1], 3, (1, 2)),  # 4 to 9; 8 to 9, which is taken
        ([100, 1, 1, 1, 1], 4, (1, 2, 3)),
        ([1, 1, 1, 1, 100], 4, (2, 3, 4)),  # the targets 26, 52 and 78 are all nearest to 4
        ([0, 0, 0], 2, (1,)),
        ([0, 0, 5, 0, 0], 2, (1,)),  # 0 and 5 are as far from 2.5
        ([0.25, 0.5, 0.25], 3, (1, 2)),
    ],
)
def test_prefix_nearest_cuts_at_the_prefix_sums_nearest_to_equal_parts(
    costs: list[float], stages: int, cuts: Cuts
) -> None:
    assert prefix_nearest(costs, stages) == cuts


def test_nearest_prefix_sums_can_cost_more_than_the_exact_partition() -> None:
    """Both cuts are at the nearest place, and the stage between them gets too much of both."""
    costs = [8, 5, 9, 8]  # a third is 10: prefix sums 8, 13 and 22

    assert (prefix_nearest(costs, 3), minimax(costs, 3)) == ((1, 3), (2, 3))
    assert (bottleneck(costs, (1, 3)), bottleneck(costs, (2, 3))) == (14, 13)


@given(costs=COSTS)
def test_nearest_prefix_sums_of_two_stages_are_exact(costs: list[int]) -> None:
    if len(costs) > 1:
        assert bottleneck(costs, prefix_nearest(costs, 2)) == bottleneck(costs, minimax(costs, 2))


def units(*rows: tuple[float, int] | tuple[float, int, bool]) -> list[UnitCounts]:
    """Return units of given FLOPs and parameters, and whether a stage may begin there."""
    return [
        UnitCounts(f"u{number}", row[0], plain(row[1]), 1, 1, begins_stage=all(row[2:]))
        for number, row in enumerate(rows)
    ]


CHAIN = units((8, 1), (5, 1), (9, 1), (8, 20), (0, 1), (0, 1))


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("dp=1", ()),
        ("pp=3", (2, 3)),
        ("pp=3,cut=prefix_nearest", (1, 3)),
        ("pp=3,cut=parameters", (3, 4)),  # the second stage is unit 3 alone
        ("pp=3,cut=uniform", (2, 4)),
        ("pp=4,cut=uniform", (1, 3, 4)),  # 1.5, 3 and 4.5 units, of which halves go down
        ("pp=6", (1, 2, 3, 4, 5)),
        ("pp=3,cuts=1-5", (1, 5)),
        ("pp=2,schedule=interleaved,microbatches=2,cut=uniform", (1, 3, 4)),
    ],
)
def test_a_plan_says_what_its_stages_are_cut_by(text: str, cuts: Cuts) -> None:
    assert stage_cuts(ParallelPlan.parse(text), CHAIN) == cuts


@pytest.mark.parametrize("cut", FIELDS["cut"].words)
def test_stages_begin_only_where_they_may(cut: str) -> None:
    chain = units((1, 1), (9, 9, False), (1, 1), (1, 1, False), (9, 9), (1, 1, False))

    cuts = stage_cuts(ParallelPlan.parse(f"pp=2,cut={cut}"), chain)

    assert cuts in {(2,), (4,)}
    assert stage_cuts(ParallelPlan.parse(f"pp=3,cut={cut}"), chain) == (2, 4)
    with pytest.raises(
        UserError, match="expected at most 3 stages, between which units"
    ) as refusal:
        stage_cuts(ParallelPlan.parse(f"pp=4,cut={cut}"), chain)
    assert refusal.value.exit_code is ExitCode.USAGE


@given(costs=COSTS, data=st.data())
def test_partitions_of_some_places_are_those_of_the_parts_between(
    costs: list[int], data: st.DataObject
) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    places = [place for place in range(1, len(costs)) if allowed[place]]
    stages = data.draw(st.integers(1, len(places) + 1))

    cuts = partition("minimax", costs, stages, allowed)

    least = min(bottleneck(costs, each) for each in combinations(places, stages - 1))
    assert set(cuts) <= set(places)
    assert bottleneck(costs, cuts) == least


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 1), (1, 1), (1, 1, False), (1, 1)], "found 2, before unit 'u2'; choose from 1, 3."),
        (
            [(1, 1), (1, 1, False), (1, 1, False)],
            "choose from no place: drop pp.",
        ),
    ],
)
def test_cuts_by_hand_where_no_stage_may_begin_are_refused(
    rows: list[tuple[float, int]], message: str
) -> None:
    with pytest.raises(UserError, match=r"^plan .*: expected cuts where units") as refusal:
        stage_cuts(ParallelPlan.parse("pp=2,cuts=2"), units(*rows))

    assert str(refusal.value).endswith(message)


@pytest.mark.parametrize("task", task_names())
def test_parameters_are_balanced_as_stages_hold_them(task: str) -> None:
    """No stage has two units that share a parameter, so that each copy counts once."""
    table = load_units(task)
    for ranks in range(2, min(table.most_stages, 12) + 1):
        plan = ParallelPlan.parse(f"pp={ranks},cut=parameters")
        stages = Stages(plan, table, stage_cuts(plan, table.units))
        held = [[stages.table.units[n].parameters for n in own] for own in stages.units]
        counted = [[table.units[n].parameters for n in own] for own in stages.units]
        assert held == counted


def test_the_gaps_to_the_exact_partition_are_those_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/plans.md").read_text(encoding="utf-8")
    rows = []
    for task in ("resnet50", "resnet152", "vgg", "vit", "bert_large"):
        chain = load_units(f"{task}/cluster").units
        flops = [unit.forward_flops for unit in chain]
        cells = []
        for cut in ("uniform", "parameters", "prefix_nearest"):
            plans = [ParallelPlan.parse(f"pp={stages},cut={cut}") for stages in (4, 8)]
            gaps = [
                bottleneck(flops, stage_cuts(plan, chain))
                / bottleneck(flops, minimax(flops, plan.pp))
                for plan in plans
            ]
            cells.append(", ".join(f"{gap:.2f}" for gap in gaps))
        rows.append(f"| `{task}/cluster` | {' | '.join(cells)} |")

    chains = [random.Random(seed) for seed in range(1000)]
    random_gaps = sorted(_random_gap(draw) for draw in chains)
    exact = sum(gap == 1 for gap in random_gaps)
    assert f"`prefix_nearest` is optimal for {exact / 10:.0f} %" in page
    assert f"90th percentile is\n{100 * random_gaps[900] - 100:.0f} %" in page
    assert "\n".join(rows) in page, "paste these rows:\n" + "\n".join(rows)


def _random_gap(draw: random.Random) -> float:
    costs = [draw.randint(1, 100) for _ in range(draw.randint(8, 60))]
    stages = draw.randint(3, 8)
    nearest, exact = prefix_nearest(costs, stages), minimax(costs, stages)
    return bottleneck(costs, nearest) / bottleneck(costs, exact)
