"""Programs of delayed pipelines: complete, free of deadlock, and of the versions the law states."""

from __future__ import annotations

import random

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.plan.program import Action, ActionKind, block_program
from hybridperf.plan.program_check import find_fault

STEPS = range(7)
PASSES = (ActionKind.FORWARD, ActionKind.BACKWARD)


def programs(plan: ParallelPlan, steps: range, oldest: int = 0) -> list[list[Action]]:
    """Return the program of each stage."""
    return [list(block_program(plan, stage, steps, oldest=oldest)) for stage in range(plan.pp)]


def random_plans(count: int) -> list[ParallelPlan]:
    """Return plans that fit any model, half of them without a flush."""
    draw, plans = random.Random(1), list[ParallelPlan]()
    while len(plans) < count:
        stages, microbatches, staleness = draw.randint(1, 8), draw.randint(1, 9), draw.randint(0, 8)
        text = f"pp={stages},microbatches={microbatches},staleness={staleness}"
        if stages > 1 and draw.random() < 0.25:
            text += ",schedule=gpipe"
        elif stages > 1 and staleness * microbatches >= stages - 1 and draw.random() < 0.7:
            text += ",flush=off"
        plans.append(ParallelPlan.parse(text))
    return plans


@pytest.mark.parametrize("plan", random_plans(200), ids=str)
def test_random_programs_finish_block_after_block(plan: ParallelPlan) -> None:
    for steps in (range(5), range(5, 6), range(6, 13)):
        assert find_fault(programs(plan, steps), plan, steps) is None


@pytest.mark.parametrize("plan", random_plans(50), ids=str)
def test_every_pass_computes_with_the_version_of_the_law(plan: ParallelPlan) -> None:
    for program in programs(plan, range(3, 10)):
        for action in program:
            if action.kind in PASSES:
                assert action.version == max(0, action.step - plan.staleness)


def test_a_resumed_block_computes_with_the_oldest_version_there_is() -> None:
    plan = ParallelPlan.parse("dp=2,staleness=3")
    (program,) = programs(plan, range(5, 10), oldest=4)

    versions = [action.version for action in program if action.kind is ActionKind.FORWARD]

    assert versions == [4, 4, 4, 5, 6]
    assert find_fault([program], plan, range(5, 10)) is None


def test_without_a_flush_a_stage_never_stops_between_steps() -> None:
    plan = ParallelPlan.parse("pp=2,microbatches=2,staleness=1,flush=off")

    first = [
        f"{action.kind.value[0]}{action.step}.{action.microbatch}"
        for action in programs(plan, range(2))[0]
        if action.kind in PASSES
    ]

    assert first == ["f0.0", "f0.1", "b0.0", "f1.0", "b0.1", "f1.1", "b1.0", "b1.1"]


@pytest.mark.parametrize("text", ["pp=4,microbatches=2,staleness=1", "pp=3,microbatches=1"])
def test_too_little_staleness_for_the_micro_batches_in_flight_is_found(text: str) -> None:
    plan = ParallelPlan.parse(f"{text},flush=off")
    assert "applied before they are reduced" in (
        find_fault(programs(plan, STEPS), plan, STEPS) or ""
    )


def _without(kind: ActionKind) -> list[list[Action]]:
    """Return programs of two stages, the second without its last action of a kind."""
    plans = programs(ParallelPlan.parse("pp=2,staleness=1"), STEPS)
    last = max(n for n, action in enumerate(plans[1]) if action.kind is kind)
    del plans[1][last]
    return plans


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ActionKind.RECEIVE_ACTIVATION, "stage 0: sends messages that nobody receives"),
        (ActionKind.FORWARD, "is out of order"),
        (ActionKind.BACKWARD, "not every micro-batch has one forward and backward pass"),
        (ActionKind.SEND_GRADIENT, "deadlock: stage 0 at receive gradient of step 6"),
        (ActionKind.REDUCE, "applied before they are reduced"),
        (ActionKind.UPDATE, "deadlock: stage 0 at update of step 6"),
    ],
)
def test_a_program_without_an_action_is_at_fault(kind: ActionKind, fault: str) -> None:
    plan = ParallelPlan.parse("pp=2,staleness=1")
    assert fault in (find_fault(_without(kind), plan, STEPS) or "")


def test_a_version_that_is_retired_too_early_is_found() -> None:
    plan = ParallelPlan.parse("pp=2,staleness=1")
    found = programs(plan, STEPS)
    found[0].insert(0, Action(ActionKind.RETIRE, 0, version=0))

    assert "computes with version 0, not alive" in (find_fault(found, plan, STEPS) or "")


def test_a_program_without_its_last_step_is_incomplete() -> None:
    plan = ParallelPlan.parse("pp=2,staleness=1")
    fault = find_fault(programs(plan, range(6)), plan, STEPS)
    assert fault == "stage 0: not every micro-batch has one forward and backward pass"
