"""Programs of pipelines: complete, free of deadlock, and of the versions the law states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.plan import ParallelPlan
from hybridperf.plan import program as plan_program
from hybridperf.plan.program import rank_program
from hybridperf.plan.schedules import Action, ActionKind
from tests.plan.program_faults import find_fault

STEPS = range(7)
PASSES = (ActionKind.FORWARD, ActionKind.BACKWARD)


def programs(plan: ParallelPlan, steps: range, oldest: int = 0) -> list[list[Action]]:
    """Return the program of each rank of a pipeline."""
    return [list(rank_program(plan, rank, steps, oldest=oldest)) for rank in range(plan.pp)]


@st.composite
def random_plans(draw: st.DrawFn) -> ParallelPlan:
    """Draw a plan that fits any model, with a flush or without."""
    stages, microbatches = draw(st.integers(1, 8)), draw(st.integers(1, 9))
    staleness = draw(st.integers(0, 8))
    ways = [""]
    if stages > 1:
        ways.append(",schedule=gpipe")
        if staleness * microbatches >= stages - 1:
            ways.append(",flush=off")
    way = draw(st.sampled_from(ways))
    return ParallelPlan.parse(f"pp={stages},microbatches={microbatches},staleness={staleness}{way}")


SYNCHRONOUS = [
    ParallelPlan.parse(text)
    for text in (
        "dp=2,microbatches=3",
        "dp=2,sync=blocking,microbatches=3",
        "dp=2,pp=3,microbatches=4",
        "dp=2,pp=3,microbatches=4,sync=blocking,schedule=gpipe",
        *(
            f"dp=2,pp={ranks},schedule=interleaved,stages={stages},microbatches={m},{sync}"
            for ranks, m in ((2, 3), (3, 2), (4, 8), (4, 10))
            for stages in (2, 3)
            for sync in ("zero=1", "sync=blocking", "sync=overlapped")
        ),
        *(
            f"dp=2,pp={ranks},schedule=zbv,microbatches={m},{sync}"
            for ranks in (2, 3, 5)
            for m in (1, 4, 9, 20)
            for sync in ("zero=1", "sync=blocking")
        ),
    )
]


@pytest.mark.parametrize("plan", SYNCHRONOUS, ids=str)
def test_programs_of_every_schedule_finish(plan: ParallelPlan) -> None:
    for steps in (range(2), range(2, 3)):
        assert find_fault(programs(plan, steps), plan, steps) is None


def test_a_stage_of_a_synchronous_pipeline_averages_before_it_sends() -> None:
    plan = ParallelPlan.parse("dp=2,pp=2,microbatches=2")
    last = [action.kind for action in programs(plan, range(1))[1]][-7:]
    assert last == [
        ActionKind.BACKWARD,
        ActionKind.REDUCE,
        ActionKind.AWAIT,
        ActionKind.SEND_GRADIENT,
        ActionKind.RETIRE,
        ActionKind.UPDATE,
        ActionKind.PUBLISH,
    ]


def test_a_blocking_average_follows_all_passes_of_all_stages() -> None:
    plan = ParallelPlan.parse("dp=2,pp=2,schedule=zbv,sync=blocking,microbatches=4")
    (end, *_) = programs(plan, range(1))
    kinds = [(action.kind, action.stage) for action in end][-5:-3]
    assert kinds == [(ActionKind.REDUCE, 0), (ActionKind.REDUCE, 3)]


def test_stages_of_one_rank_send_each_other_nothing() -> None:
    plan = ParallelPlan.parse("pp=3,schedule=zbv,microbatches=2")
    turn = programs(plan, range(1))[2]
    assert {action.stage for action in turn if action.kind is ActionKind.SEND_ACTIVATION} == {3}
    assert {action.stage for action in turn if action.kind is ActionKind.RECEIVE_GRADIENT} == {3}


@given(random_plans())
def test_random_programs_finish_block_after_block(plan: ParallelPlan) -> None:
    for steps in (range(5), range(5, 6), range(6, 13)):
        assert find_fault(programs(plan, steps), plan, steps) is None


@given(random_plans())
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
    assert "applied before they are averaged" in (
        find_fault(programs(plan, STEPS), plan, STEPS) or ""
    )


def _without(kind: ActionKind) -> list[list[Action]]:
    """Return programs of two ranks, the second without its last action of a kind."""
    plans = programs(ParallelPlan.parse("pp=2,staleness=1"), STEPS)
    last = max(n for n, action in enumerate(plans[1]) if action.kind is kind)
    del plans[1][last]
    return plans


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ActionKind.RECEIVE_ACTIVATION, "stage 0: sends messages that nobody receives"),
        (ActionKind.FORWARD, "is out of order"),
        (
            ActionKind.BACKWARD,
            "reduce of step 6, micro-batch 0 in stage 1 comes before",
        ),
        (ActionKind.SEND_GRADIENT, "deadlock: rank 0 at receive gradient of step 6"),
        (ActionKind.REDUCE, "applied before they are averaged"),
        (ActionKind.UPDATE, "deadlock: rank 0 at update of step 6"),
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
    assert fault == "rank 0: not every micro-batch has one forward and backward pass"


def test_the_diagram_shows_the_versions_of_passes_and_updates() -> None:
    letters = {
        ActionKind.FORWARD: ("F", "version"),
        ActionKind.BACKWARD: ("B", "version"),
        ActionKind.REDUCE: ("R", "step"),
        ActionKind.PUBLISH: ("U", "version"),
    }
    rows = [line.split() for line in (plan_program.__doc__ or "").splitlines() if " F0 B0 " in line]

    assert [row[0] for row in rows] == ["staleness=0", "staleness=1"]
    for field, *cells in rows:
        (actions,) = programs(ParallelPlan.parse(f"dp=2,{field}"), range(3))
        assert cells == [
            letters[each.kind][0] + str(getattr(each, letters[each.kind][1]))
            for each in actions
            if each.kind in letters
        ]
