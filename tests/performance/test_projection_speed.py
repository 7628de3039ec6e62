"""How fast programs are simulated and plans are projected, on one core."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.plan.program import rank_program
from hybridperf.projection.costs import plan_at_least_s, plan_costs
from hybridperf.projection.memory import memory_bytes
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.project import project
from hybridperf.projection.simulate import Bucket, simulate
from hybridperf.projection.units import UnitTimes, load_units
from tests.projection.simulated import costs_of

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIONS = 100_000
SLOWEST_S = 0.5  #: of processor time, for as many
PEAK_MIB = 256.0
DEVICES, BATCH = 4096, 65_536
NETWORK = Network(8, NetworkLink(5e-6, 250e9), NetworkLink(10e-6, 25e9))
PLANS = tuple(
    ParallelPlan.parse(text)
    for text in (
        "dp=4096",
        "dp=512,tp=8,sp=on,precision=bf16",
        "dp=256,pp=16,microbatches=256",
        "dp=64,tp=8,pp=8,microbatches=128,precision=bf16",
        "dp=64,tp=8,pp=8,microbatches=128,schedule=interleaved,precision=bf16",
        "dp=512,pp=8,microbatches=128,schedule=zbv,zero=1",
        "dp=512,pp=8,microbatches=128,staleness=1,flush=off",
    )
)


def _seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the least processor time of several rounds of ``work``."""
    took_s = []
    for _ in range(rounds):
        start_s = time.process_time()
        work()
        took_s.append(time.process_time() - start_s)
    return min(took_s)


@pytest.mark.parametrize("text", ["schedule=1f1b,staleness=1,flush=off", "schedule=zbv"])
def test_simulate_a_hundred_thousand_actions(benchmark: Any, text: str) -> None:
    plan = ParallelPlan.parse(f"dp=2,pp=16,microbatches=32,{text}")
    steps = 34 if plan.stages == 1 else 15
    programs = [list(rank_program(plan, rank, range(steps))) for rank in range(plan.pp)]
    costs = costs_of(plan, occupied_s=0.01, buckets=[Bucket(0.5, 2.0)], update_s=0.1)
    actions = sum(map(len, programs))
    assert actions >= ACTIONS

    took_s = _seconds(lambda: simulate(programs, costs))
    benchmark.pedantic(simulate, (programs, costs), rounds=1)
    benchmark.extra_info["actions"] = actions
    benchmark.extra_info["ms of processor time"] = round(1e3 * took_s, 1)
    assert took_s * ACTIONS / actions < SLOWEST_S


def test_project_plans_for_4096_devices(benchmark: Any) -> None:
    table = load_units("bert_large/cluster")

    def timing(microbatch: int) -> UnitTimes:
        forward_s = tuple(1e-5 + microbatch * u.forward_flops / 200e12 for u in table.units)
        backward_s = tuple(2 * each for each in forward_s)
        return UnitTimes(microbatch, forward_s, backward_s, 1e-5, (1e-4,) * len(forward_s))

    def each(work: Callable[[ParallelPlan], object]) -> None:
        for plan in PLANS:
            assert plan.ranks == DEVICES
            work(plan)

    def bound(plan: ParallelPlan) -> object:
        cuts, times = stage_cuts(plan, table.units), timing(BATCH // plan.dp // plan.microbatches)
        return plan_at_least_s(plan, plan_costs(plan, table, times, NETWORK, cuts).costs)

    def needed(plan: ParallelPlan) -> object:
        samples = BATCH // plan.dp // plan.microbatches
        return memory_bytes(plan, table, stage_cuts(plan, table.units), samples, "lamb")

    def whole(plan: ParallelPlan) -> object:
        return project(plan, table, timing, NETWORK, global_batch_size=BATCH, optimizer="lamb")

    tracemalloc.start()
    each(whole)
    peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    benchmark.pedantic(each, (whole,), rounds=1)
    for name, work in (("bound", bound), ("memory", needed), ("projection", whole)):
        took_ms = 1e3 * _seconds(lambda work=work: each(work)) / len(PLANS)  # type: ignore[misc]  # its default binds it
        benchmark.extra_info[f"{name} of a plan, ms of processor time"] = round(took_ms, 2)
    benchmark.extra_info["peak, MiB"] = round(peak_mib, 1)
    assert peak_mib < PEAK_MIB
    assert _seconds(lambda: each(whole), rounds=1) / len(PLANS) < SLOWEST_S
