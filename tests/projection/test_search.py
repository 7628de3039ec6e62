"""The search finds what simulating every valid plan finds, and its bounds are bounds."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from hybridperf.plan import ParallelPlan, TrainingConfig
from hybridperf.projection.costs import plan_at_least_s, plan_costs
from hybridperf.projection.memory import memory_bytes
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.search import (
    RECOMPUTED,
    Candidates,
    GroupBounds,
    Methods,
    Ranking,
    Work,
    cut_again,
    groups,
    search,
)
from hybridperf.projection.units import UnitTimes, load_units
from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.projection.project import Projection
    from hybridperf.projection.search import Layout, PassOrder
    from hybridperf.projection.units import UnitTable

ONE_NODE: Final = Network(8, NetworkLink(5e-6, 2e9))
TWO_NODES: Final = Network(4, NetworkLink(5e-6, 2e9), NetworkLink(2e-5, 2e8, shared_by=4))


class Case(NamedTuple):
    """A task on eight devices."""

    task: str
    batch: int
    network: Network
    methods: Methods = "equivalent"
    device_bytes: int | None = None
    devices: int = 8

    @property
    def work(self) -> Work:
        task, units = find_task(self.task), load_units(self.task)
        return Work(
            units,
            _Timing(units),
            self.network,
            self.batch,
            task.optimizer.name,
            device_bytes=self.device_bytes,
        )

    @property
    def bounds(self) -> GroupBounds:
        work = self.work
        return GroupBounds(self.candidates, work.units, work.timing, work.network)

    @property
    def candidates(self) -> Candidates:
        parallel = find_task(self.task).parallel
        config = TrainingConfig(
            units=len(load_units(self.task).units),
            global_batch_size=self.batch,
            devices=self.devices,
            ranks_per_device=1,
            device_kind="gpu",
            tensor_sizes=parallel.tensor_sizes,
            tokens=parallel.tokens,
            batch_norm=parallel.batch_norm,
            tied=parallel.tied,
        )
        return Candidates(config, self.devices, self.network.devices_per_node, self.methods)


class _Timing:
    """Times of a device that takes 20 us to start a unit, and is faster on larger micro-batches."""

    def __init__(self, units: UnitTable) -> None:
        self._units = units.units

    def __call__(self, microbatch: int) -> UnitTimes:
        forward = tuple(2e-5 + unit.forward_flops * (microbatch + 1) / 1e11 for unit in self._units)
        return UnitTimes(
            microbatch,
            forward,
            tuple(1.7 * each for each in forward),
            3e-5,
            tuple(1e-5 + unit.parameters / 1e9 for unit in self._units),
        )


_NETWORKS: Final = 40

CASES: Final = {
    "transformer": Case("bert/laptop", 8, ONE_NODE),
    "few-samples": Case("bert/laptop", 2, ONE_NODE),  # fewer than devices
    "transformer-on-nodes": Case("bert/laptop", 8, TWO_NODES),
    "convolutions-on-nodes": Case("resnet/laptop", 16, TWO_NODES),
    "tied": Case("bert/workstation", 4, ONE_NODE, devices=4),
    "short-of-memory": Case("vit/laptop", 64, ONE_NODE, device_bytes=1_300_000),
    "other-methods": Case("resnet/laptop", 8, TWO_NODES, "other", devices=4),
}


def _valid(case: Case) -> Iterator[tuple[Layout, PassOrder, ParallelPlan]]:
    """Yield every plan that is considered, without recomputation."""
    candidates = case.candidates
    for layout, pipeline in groups(candidates, case.bounds):
        for plan in candidates.plans(layout, pipeline):
            yield layout, pipeline, plan


def _cuts(plan: ParallelPlan, work: Work) -> tuple[int, ...]:
    return stage_cuts(plan, work.units.units)


def _fits(plan: ParallelPlan, work: Work) -> bool:
    samples = work.global_batch_size // plan.dp // plan.microbatches
    ranks = memory_bytes(plan, work.units, _cuts(plan, work), samples, work.optimizer)
    return work.device_bytes is None or max(r.total_bytes for r in ranks) <= work.device_bytes


def _project(plan: ParallelPlan, work: Work) -> Projection:
    return work.project(plan, _cuts(plan, work))


def _exhaustive(case: Case) -> list[float]:
    """Return the steps of all plans that fit, of several recomputations the fastest, in order.

    Plans whose compression gains nothing are left out.
    """
    work, config = case.work, case.candidates.config
    steps = []
    for _, _, valid in _valid(case):
        plans = (dataclasses.replace(valid, recompute=each) for each in RECOMPUTED)
        fitting = [plan for plan in plans if not plan.check(config) and _fits(plan, work)]
        found = [_project(plan, work) for plan in fitting]
        fastest = min(found, key=lambda each: each.step_s, default=None)
        if fastest is not None and work.gains(fastest):
            steps.append(fastest.step_s)
    return sorted(steps)


def _distinct(steps: list[float]) -> list[float]:
    return [
        step
        for place, step in enumerate(steps)
        if not place or step > steps[place - 1] * (1 + 1e-9)
    ]


@pytest.mark.parametrize("name", CASES)
def test_it_finds_the_best_of_all_plans(name: str) -> None:
    case, most = CASES[name], 5

    ranking = search(case.candidates, case.work, most=most, budget_actions=10**9)

    every = _exhaustive(case)
    assert [each.step_s for each in ranking.best] == pytest.approx(_distinct(every)[:most])
    assert ranking.left == 0
    assert ranking.projected < len(every) / 2  # it does not look at all


def test_compression_that_gains_nothing_is_left_out() -> None:
    instant = CASES["other-methods"]._replace(network=Network(8, NetworkLink(0.0, 1e30)))
    slow = instant._replace(network=Network(1, NetworkLink(1e-5, 1e8), NetworkLink(1e-5, 1e7)))

    without, with_it = (
        [each.plan for each in search(case.candidates, case.work, most=5).best]
        for case in (instant, slow)
    )

    assert without
    assert all((plan.gradients, plan.links) == ("fp32", "none") for plan in without)
    assert any((plan.gradients, plan.links) != ("fp32", "none") for plan in with_it)


@pytest.mark.parametrize("name", CASES)
def test_no_step_is_shorter_than_its_bounds(name: str) -> None:
    work, bounds = CASES[name].work, CASES[name].bounds
    for layout, pipeline, plan in _valid(CASES[name]):
        step_s = _project(plan, work).step_s * (1 + 1e-9)
        assert bounds.at_least_s(layout, pipeline) <= step_s, plan
        assert bounds.at_least_s(layout, pipeline, plan) <= step_s, plan
        times = bounds.timing(bounds.microbatch(layout, pipeline))
        priced = plan_costs(plan, work.units, times, work.network, _cuts(plan, work))
        assert plan_at_least_s(plan, priced.costs) <= step_s, plan


@pytest.mark.parametrize("name", CASES)
def test_no_step_is_shorter_than_its_bounds_on_any_network(name: str) -> None:
    draw = random.Random(name)
    plans = [*_valid(CASES[name])]
    for _ in range(_NETWORKS):
        case = CASES[name]._replace(network=_random_network(draw))
        work, bounds = case.work, case.bounds
        for layout, pipeline, plan in draw.sample(plans, 15):
            step_s = _project(plan, work).step_s * (1 + 1e-9)
            times = bounds.timing(bounds.microbatch(layout, pipeline))
            priced = plan_costs(plan, work.units, times, work.network, _cuts(plan, work))
            assert bounds.at_least_s(layout, pipeline) <= step_s, (plan, work.network)
            assert bounds.at_least_s(layout, pipeline, plan) <= step_s, (plan, work.network)
            assert plan_at_least_s(plan, priced.costs) <= step_s, (plan, work.network)


def _random_network(draw: random.Random) -> Network:
    """Return links of 1 MB/s to 3 GB/s, some with processor time of averages."""

    def link(shared_by: int = 1) -> NetworkLink:
        return NetworkLink(10 ** draw.uniform(-6, -3), 10 ** draw.uniform(6, 9.5), shared_by)

    across = link(draw.choice([1, 4]))
    return Network(
        draw.choice([2, 4, 8]),
        link(),
        draw.choice([None, across]),
        library=draw.choice(["nccl", "gloo"]),
        averaging_work=draw.choice([0.0, 2 * draw.random()]),
    )


def test_what_does_not_fit_is_recomputed_before_it_is_given_up() -> None:
    case = CASES["short-of-memory"]

    ranking = search(case.candidates, case.work, most=3)

    assert all(max(each.memory_bytes) <= 1_300_000 for each in ranking.best)
    assert any(each.plan.recompute for each in ranking.best)
    assert ranking.too_large > 0


def test_where_nothing_fits_the_nearest_plan_is_named() -> None:
    case = CASES["short-of-memory"]._replace(device_bytes=1000)

    ranking = search(case.candidates, case.work, most=3)

    assert ranking.best == []
    assert ranking.too_large == ranking.considered
    assert ranking.nearest is not None
    plan, needed = ranking.nearest
    ranks = memory_bytes(
        plan, case.work.units, _cuts(plan, case.work), 64 // plan.dp // plan.microbatches, "adamw"
    )
    assert needed == max(rank.total_bytes for rank in ranks) > 1000


def test_a_spent_budget_is_said() -> None:
    case = CASES["transformer"]

    ranking = search(case.candidates, case.work, most=3, budget_actions=300)

    whole = search(case.candidates, case.work, most=3)
    assert ranking.left > 0
    assert ranking.left_at_least_s is not None
    assert ranking.best[0].step_s >= whole.best[0].step_s
    assert whole.left_at_least_s is None


def test_the_best_are_cut_where_their_steps_are_shortest() -> None:
    case = CASES["convolutions-on-nodes"]
    ranking = search(case.candidates, case.work, most=5)
    before = {each.step_s for each in ranking.best}

    cut_again(ranking, case.work)

    steps = [each.step_s for each in ranking.best]
    assert steps == sorted(steps)
    assert sum(steps) < sum(before)
    assert all(_project(each.plan, case.work).step_s == each.step_s for each in ranking.best)
    assert all(each.cuts == _cuts(each.plan, case.work) for each in ranking.best)
    cut_again(ranking, case.work, budget_actions=0)
    assert [each.step_s for each in ranking.best] == steps


def test_two_cuts_of_a_plan_do_not_become_the_same() -> None:
    case = CASES["convolutions-on-nodes"]
    texts = ("dp=4,pp=2,cuts=1,microbatches=4", "dp=4,pp=2,cuts=5,microbatches=4")
    ranking = Ranking([_project(ParallelPlan.parse(each), case.work) for each in texts])

    cut_again(ranking, case.work)

    assert len({str(each.plan) for each in ranking.best}) == len(ranking.best) == 2


def test_the_answer_does_not_depend_on_chance() -> None:
    case = CASES["transformer-on-nodes"]
    first, second = (search(case.candidates, case.work, most=8) for _ in range(2))

    assert [str(each.plan) for each in first.best] == [str(each.plan) for each in second.best]
