"""An elastic run on two nodes, which are two ``hybridperf run``, goes on with what is left."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from hybridperf.log import keys
from hybridperf.plan import ParallelPlan, TrainingConfig
from hybridperf.run.elastic import judge_elastic, plans_after_losses, segment_on
from tests.engine.compare import RELATIVE, assert_close
from tests.run.conftest import find, wait_until
from tests.run.pair import Pair, ended
from tests.run.test_elastic import (
    EPOCH,
    assert_went_on,
    log_of,
    segments,
    steps_that_count,
    tensors,
    weights,
)
from tests.run.test_nodes import cable
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.run.spec import RunSpec
    from tests.run.command_server import Command
    from tests.run.conftest import Bench

PLAN = ("--plan", "dp=2,bn=sync")


@pytest.fixture
def pair(bench: Bench) -> Iterator[Pair]:
    pair = Pair(bench)
    with pair.reserved:
        yield pair


@pytest.mark.parametrize(
    "plan", ["dp=1", pytest.param("dp=2,bn=sync", marks=pytest.mark.exhaustive)]
)
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


def written(bench: Bench) -> str:
    """Return the log of the run as far as it is written; empty once it is sealed."""
    with contextlib.suppress(FileNotFoundError):  # it is sealed at this instant
        return "".join(path.read_text() for path in find(bench.out, "log.txt"))
    return ""


def test_node_0_killed_in_a_later_segment_resumes_that(pair: Pair) -> None:
    options = (*PLAN, "--elastic")
    waits = {"FAULT": "wait", "SEEN": str(seen := pair.bench.note("seen"))}
    first = pair.start(0, *options, **waits)
    other = pair.start(1, *options, FAULT="kill", FAULT_RANK="1")
    wait_until(lambda: written(pair.bench).count(f'"{keys.BLOCK_START}"') == 3)

    first.kill()

    (done,) = ended(other)
    assert done.code == 4
    assert "node 0 was lost" in done.sentence
    seen.write_text("now")
    again = pair.run(*options)
    assert [each.code for each in again] == [0, 0], again
    assert_went_on(
        pair.bench,
        (EPOCH, "dp=1", "rank 1", "rank 1 was killed by SIGKILL"),
        (EPOCH, "dp=1", "the harness", "it was ended"),
    )


def test_a_node_that_is_back_takes_part_from_the_next_checkpoint_on(pair: Pair) -> None:
    seen = pair.bench.note("seen")
    options = (*PLAN, "--elastic", "--checkpoint-every", "0.000001")
    waits = {"FAULT": "wait", "SEEN": str(seen)}
    first, other = pair.both(*options, **waits)
    wait_until(lambda: f'"step": {EPOCH + 3},' in written(pair.bench))
    other.kill()
    token = pair.bench.out / f".rendezvous_{pair.port}"
    wait_until(token.exists)
    (refused,) = ended(pair.start(1, *options, CODE="1"))
    assert refused.code == 2
    assert "expected trainer_sha256 000000" in refused.sentence

    other = pair.start(1, *options, **waits)
    wait_until(lambda: not token.exists())
    seen.write_text("node 1")

    done = ended(first, other)
    assert [each.code for each in done] == [0, 0], done
    *_, (step, *_) = segments(log_of(pair.bench))
    expected = f"attempt 0: node 1 is back; goes on from step {step} under dp=2,bn=sync\n"
    assert expected in done[0].err
    assert_went_on(
        pair.bench,
        (EPOCH + 3, "dp=1", "node 1", "node 1 was lost"),
        (step, "dp=2,bn=sync", "", "node 1 is back"),
    )


#: part of a run by what its log or its folder of checkpoints then has
PARTS = {
    "initialisation": keys.INIT_START,
    "training": keys.BLOCK_START,
    "evaluation": keys.EVAL_START,
    "saving": ".step_*",
    "end": keys.RUN_STOP,
}
#: an uninterrupted run, once a test asked for it
WHOLE_RUN: list[Bench] = []


def start_real(pair: Pair, *options: str) -> list[Command]:
    """Start a run of the reference trainer, always with the same seed."""
    real = {"trainer": "hybridperf_reference", "SEED": "2718"}
    return pair.both(*PLAN, "--keep-weights", *options, **real)


def has_come_to(bench: Bench, part: str) -> bool:
    """Tell whether the run has come to ``part``, or has been sealed."""
    begun = f'"{PARTS[part]}"' in written(bench)
    if part == "saving":
        begun = any(list(each.glob(PARTS[part])) for each in find(bench.out, "checkpoints"))
    return begun or bool(find(bench.out, "result_0.txt"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("plan", ["dp=2,bn=sync", "dp=1"])
def test_a_node_killed_at_any_instant_changes_no_weight(
    pair: Pair, tmp_path: Path, plan: str, part: str
) -> None:
    bench, chance = pair.bench, random.Random(f"{plan} {part}")
    # Small steps, since training amplifies the roundings in which plans differ.
    bench.change_task(epochs=2, width=4, lr=0.00001)
    if not WHOLE_RUN:
        bench.out, out = tmp_path / "whole", bench.out
        assert [each.code for each in ended(*start_real(pair))] == [1, 1]
        WHOLE_RUN.append(replace(bench))
        bench.out = out
    whole = WHOLE_RUN[0]
    first, other = start_real(pair, "--elastic", plan, "--checkpoint-every", "1")
    wait_until(lambda: has_come_to(bench, part))
    time.sleep(0.0 if part == "saving" else chance.uniform(0.0, 0.3))

    other.kill()

    (done,) = ended(first)
    assert done.code == 1, done
    wait_until(lambda: not bench.processes_left())
    assert bench.outcomes() == ["target_missed"]
    assert bench.rules_broken() <= {"result.missed", "run.hyperparameters"}
    assert steps_that_count(log_of(bench)) == list(range(2 * 1195 // 32))
    assert [lost for _, _, lost, _ in segments(log_of(bench))] in ([], ["node 1"])
    if plan == PLAN[1]:
        assert weights(bench) == weights(whole) != {}
    else:
        (found,), (expected,) = tensors(bench), tensors(whole)
        assert_close(f"{PLAN[1]}, then {plan}", found, expected, RELATIVE[torch.float32])


def test_a_plan_that_no_nodes_share_equally_is_refused() -> None:
    config = TrainingConfig(units=6, global_batch_size=12, devices=4, ranks_per_device=1)
    plan = ParallelPlan.parse("dp=4,bn=sync")

    (finding,) = judge_elastic("dp=3,bn=sync", plan, config, nodes=2)

    expected = "plans whose ranks 2 nodes or fewer share equally, at most 2 on each"
    assert (finding.expected, finding.found) == (expected, "dp=3,bn=sync of 3")
    assert judge_elastic("", plan, config, nodes=2) == []
    lower = plans_after_losses("", plan, config, nodes=2) or ()
    assert [str(each) for each in lower] == ["dp=2,bn=sync", "dp=1"]


def test_a_plan_that_does_not_fit_what_is_left_is_passed_over(tmp_path: Path) -> None:
    plans = ("dp=8,bn=sync", "dp=3,bn=sync", "dp=4,bn=sync", "dp=2,bn=sync", "dp=1")
    whole = run_spec(tmp_path, plan="dp=6,bn=sync", nodes=3, elastic=plans, ranks_per_node=2)
    spec: RunSpec | None = whole

    chosen = []
    while spec is not None and (spec := segment_on((0, 2), spec, spec.plan_number + 1)):
        chosen.append((str(spec.parallel_plan()), spec.rank_nodes))

    assert chosen == [(plans[2], (0, 2)), (plans[3], (0, 2)), (plans[4], (0,))]
    spec = segment_on((0, 1, 2), whole, 0)
    assert spec is not None
    assert (spec.plan_number, spec.rank_nodes) == (0, (0, 1, 2))


@pytest.mark.exhaustive
def test_a_machine_that_stops_is_gone_without(pair: Pair) -> None:
    with cable() as (pair.host, starters, pull):
        started = pair.hang(*PLAN, "--elastic", starters=starters, LOST_S="4")
        pull()
        done = ended(*started)

    assert [each.code for each in done] == [0, 4], done
    assert "node 0 was lost" in done[1].sentence
    assert_went_on(pair.bench, (EPOCH, "dp=1", "node 1", "node 1 was lost"))


def test_the_node_that_is_left_goes_on(pair: Pair) -> None:
    first, other = pair.hang(*PLAN, "--elastic")

    other.kill()

    (done,) = ended(first)
    assert done.code == 0, done
    assert f"  attempt 0: lost node 1; goes on from step {EPOCH} under dp=1\n" in done.err
    assert_went_on(pair.bench, (EPOCH, "dp=1", "node 1", "node 1 was lost"))
