"""An elastic run on two nodes, which are two ``hybridperf run``, goes on with what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.run.elastic import segment_after_loss
from tests.run.conftest import wait_until
from tests.run.pair import Pair, ended
from tests.run.test_elastic import EPOCH, assert_went_on
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.run.spec import RunSpec
    from tests.run.conftest import Bench

PLAN = ("--plan", "dp=2,bn=sync")


@pytest.fixture
def pair(bench: Bench) -> Iterator[Pair]:
    pair = Pair(bench)
    with pair.reserved:
        yield pair


@pytest.mark.parametrize("plan", ["dp=1", "dp=2,bn=sync"])
def test_a_rank_lost_on_another_node_costs_only_time(pair: Pair, plan: str) -> None:
    done = pair.strike("kill", *PLAN, "--elastic", plan)

    assert [each.code for each in done] == [0, 0], done
    assert_went_on(pair.bench, (EPOCH, plan, "rank 1", "rank 1 was killed by SIGKILL"))
    assert pair.bench.manifests()[0]["nodes"] == [{}]


def test_a_node_lost_before_the_clock_is_gone_without(pair: Pair) -> None:
    started = pair.both(*PLAN, "--elastic", FAULT="init", FAULT_RANK="1")
    wait_until(lambda: pair.ranks_of(1))

    started[1].kill()

    assert ended(started[0])[0].code == 0
    assert_went_on(pair.bench, (0, "dp=1", "node 1", "node 1 was lost"))


def test_the_nodes_that_are_left_share_the_next_plan_that_fits(pair: Pair) -> None:
    plan, lower = "pp=3,microbatches=4", "pp=2,microbatches=4"
    options = ("--nodes", "3", "--plan", plan, "--elastic", lower)
    once = str(pair.bench.note())
    started = pair.hang(*options, starters=((),) * 3, FAULT_ONCE=once)

    started.pop(1).kill()

    assert [each.code for each in ended(*started)] == [0, 0]
    lower = str(ParallelPlan.parse(lower))
    assert_went_on(pair.bench, (EPOCH, lower, "node 1", "node 1 was lost"))


def test_a_plan_that_does_not_fit_what_is_left_is_passed_over(tmp_path: Path) -> None:
    plans = ("dp=8,bn=sync", "dp=3,bn=sync", "dp=4,bn=sync", "dp=2,bn=sync", "dp=1")
    spec: RunSpec | None = run_spec(tmp_path, nodes=3, elastic=plans, ranks_per_node=2)

    chosen = []
    while spec is not None and (spec := segment_after_loss(spec, (0, 2))):
        chosen.append((spec.segment_plan, spec.rank_nodes))

    assert chosen == [(plans[2], (0, 2)), (plans[3], (0, 2)), (plans[4], (0,))]


def test_the_node_that_is_left_goes_on(pair: Pair) -> None:
    first, other = pair.hang(*PLAN, "--elastic")

    other.kill()

    (done,) = ended(first)
    assert done.code == 0, done
    assert f"  attempt 0: lost node 1; goes on from step {EPOCH} under dp=1\n" in done.err
    assert_went_on(pair.bench, (EPOCH, "dp=1", "node 1", "node 1 was lost"))
