"""The simulation: closed forms, queues on wires, averages beside passes, and who waits for what."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.schedules import Action, ActionKind
from hybridperf.projection.simulate import Bucket, Costs, _Simulation, simulate
from tests.projection.simulated import costs_of, programs_of, simulated

FORWARD, BACKWARD = 1.0, 2.0
BOTH = FORWARD + BACKWARD
PIPELINES = [(2, 2), (2, 5), (4, 4), (4, 8), (3, 9), (8, 32)]  # ranks, micro-batches


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("ranks", "microbatches"), PIPELINES)
def test_a_flushed_pipeline_takes_as_long_as_its_closed_form(
    schedule: str, ranks: int, microbatches: int
) -> None:
    timeline = simulated(f"pp={ranks},microbatches={microbatches},schedule={schedule}")
    assert timeline.makespan_s == BOTH * (microbatches + ranks - 1)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 4), (4, 8), (3, 9), (8, 32)])
def test_interleaved_takes_as_long_as_its_closed_form(
    stages: int, ranks: int, microbatches: int
) -> None:
    text = f"pp={ranks},schedule=interleaved,stages={stages},microbatches={microbatches}"
    # Narayanan et al. 2021: (p - 1) / v of a rank's passes for one micro-batch.
    assert simulated(text).makespan_s == BOTH * (stages * microbatches + ranks - 1)


@pytest.mark.parametrize(("ranks", "microbatches"), PIPELINES)
def test_without_a_flush_only_the_block_fills_and_drains(ranks: int, microbatches: int) -> None:
    steps, staleness = 7, -(-(ranks - 1) // microbatches)
    text = f"pp={ranks},microbatches={microbatches},staleness={staleness},flush=off"
    assert simulated(text, steps).makespan_s == BOTH * (steps * microbatches + ranks - 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_the_registered_idle_share_is_that_of_the_simulation(
    schedule: str, ranks: int, microbatches: int
) -> None:
    plan = ParallelPlan.parse(f"pp={ranks},schedule={schedule},microbatches={microbatches}")
    timeline = simulate(programs_of(plan), costs_of(plan))
    share = 1 - sum(timeline.busy_s) / (ranks * timeline.makespan_s)
    assert plan.pipeline is not None
    formula = plan.pipeline.idle_share.value(ranks, plan.stages, microbatches)
    assert share == pytest.approx(formula, abs=1e-12)


def longest_path(plan: ParallelPlan, costs: Costs, latency_s: float) -> float:
    """Return when the last pass of one step ends, by relaxing dependencies until nothing moves.

    It shares nothing with the simulation but the order of each rank's passes.
    """
    ends: dict[tuple[ActionKind, int, int], float] = {}
    passes = [[a for a in program if a.kind in {*PASSES}] for program in programs_of(plan)]
    rank_of = {stage: rank for rank in range(plan.pp) for stage in plan.stages_of(rank)}
    changed = True
    while changed:
        changed = False
        for program in passes:
            free = 0.0
            for action in program:
                begin = free
                for kind, stage in dependencies(action, plan.pipeline_stages):
                    key = (kind, stage, action.microbatch)
                    far = rank_of[stage] != rank_of[action.stage]
                    begin = max(begin, ends.get(key, 0.0) + latency_s * far)
                free = begin + getattr(costs, PASSES[action.kind])[action.stage]
                own = (action.kind, action.stage, action.microbatch)
                if ends.get(own) != free:
                    ends[own], changed = free, True
    return max(ends.values())


PASSES = {
    ActionKind.FORWARD: "forward_s",
    ActionKind.BACKWARD: "backward_s",
    ActionKind.BACKWARD_INPUT: "input_s",
    ActionKind.BACKWARD_WEIGHT: "weight_s",
}


def dependencies(action: Action, stages: int) -> list[tuple[ActionKind, int]]:
    """Return the passes of the same micro-batch that must end before ``action`` begins."""
    stage = action.stage
    if action.kind is ActionKind.FORWARD:
        return [(action.kind, stage - 1)] if stage else []
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return [(ActionKind.BACKWARD_INPUT, stage)]
    after = [(action.kind, stage + 1)] if stage + 1 < stages else []
    return [*after, (ActionKind.FORWARD, stage)]


@pytest.mark.parametrize("seed", range(40))
def test_unequal_stages_take_as_long_as_their_longest_path(seed: int) -> None:
    draw = random.Random(seed)
    schedule = draw.choice([*SCHEDULES])
    ranks = draw.randint(2, 5)
    text = f"pp={ranks},schedule={schedule},microbatches={ranks * draw.randint(1, 3)}"
    plan = ParallelPlan.parse(text)
    count = plan.pipeline_stages
    costs = costs_of(
        plan,
        forward_s=[draw.uniform(0.5, 2) for _ in range(count)],
        backward_s=[draw.uniform(1, 4) for _ in range(count)],
        latency_s=(latency_s := draw.uniform(0, 1)),
    )
    timeline = simulate(programs_of(plan), costs)
    assert timeline.makespan_s == pytest.approx(longest_path(plan, costs, latency_s), rel=1e-12)


@pytest.mark.parametrize("text", ["pp=4,microbatches=6", "pp=3,schedule=zbv,microbatches=7"])
def test_every_second_of_a_rank_is_busy_exposed_or_idle(text: str) -> None:
    timeline = simulated(text, 3, occupied_s=0.4, latency_s=0.1, update_s=0.2)
    for rank, program in enumerate(timeline.programs):
        starts, ends = timeline.start_s[rank], timeline.end_s[rank]
        assert all(after >= end for after, end in zip(starts[1:], ends, strict=False))
        waits = sum(timeline.exposed_s[rank].values()) + sum(timeline.idle_s[rank].values())
        assert timeline.busy_s[rank] + waits == pytest.approx(ends[-1])
        computes = sum(
            end - start
            for action, start, end in zip(program, starts, ends, strict=True)
            if action.kind in PASSES or action.kind is ActionKind.UPDATE
        )
        assert timeline.busy_s[rank] == pytest.approx(computes)


def test_messages_in_one_direction_queue() -> None:
    """A forward pass takes 1 s, a message occupies the wire for 3 s: the wire is the bottleneck."""
    timeline = simulated("pp=2,microbatches=4,schedule=gpipe", occupied_s=3.0, latency_s=0.5)
    arrivals = [
        end
        for action, end in zip(timeline.programs[1], timeline.end_s[1], strict=True)
        if action.kind is ActionKind.RECEIVE_ACTIVATION
    ]
    assert arrivals == [4.5, 7.5, 10.5, 13.5]
    # The first forward pass is waited for (1 s); from then on, what is under way.
    assert timeline.idle_s[1][0] == 1.0
    assert timeline.exposed_s[1][0] == 13.5 - 1 - 3 * FORWARD


def test_only_messages_on_one_wire_queue() -> None:
    text = "pp=3,microbatches=8,schedule=gpipe"
    apart = simulated(text, occupied_s=2.0)
    shared = simulated(text, occupied_s=2.0, wire="one for all")
    # Apart, one wire's 8 activations and a hop more; gradients take no longer than the passes.
    assert apart.makespan_s == 3 * FORWARD + 9 * 2.0 + 10 * BACKWARD + 2 * 2.0
    assert shared.makespan_s >= FORWARD + 16 * 2.0 + FORWARD + BACKWARD + 16 * 2.0


def test_a_shared_wire_takes_messages_in_the_order_in_which_they_are_sent() -> None:
    timeline = simulated("pp=4,microbatches=6", 2, occupied_s=0.7, wire="bus")
    sends = sorted(
        (start, rank, at)
        for rank, program in enumerate(timeline.programs)
        for at, (action, start) in enumerate(zip(program, timeline.start_s[rank], strict=True))
        if action.kind in {ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT}
    )
    free = 0.0
    for start, rank, at in sends:
        free = max(free, start) + 0.7
        sent = timeline.programs[rank][at]
        forth = sent.kind is ActionKind.SEND_ACTIVATION
        receiver = rank + 1 if forth else rank - 1
        kind = ActionKind.RECEIVE_ACTIVATION if forth else ActionKind.RECEIVE_GRADIENT
        found = next(
            n
            for n, action in enumerate(timeline.programs[receiver])
            if (action.kind, action.step, action.microbatch) == (kind, sent.step, sent.microbatch)
        )
        assert timeline.end_s[receiver][found] >= free - 1e-9


def test_buckets_of_the_last_backward_pass_are_exposed_as_far_as_they_outlast_it() -> None:
    """VGG: the classifier's bucket is ready early and takes long, those of convolutions wait."""
    buckets = [Bucket(1.8, 3.0), Bucket(0.5, 0.2), Bucket(0.0, 0.1)]
    timeline = simulated("dp=2", 2, buckets=buckets, update_s=0.25)
    step_s = BOTH - 1.8 + 3.0 + 0.2 + 0.1 + 0.25
    assert timeline.makespan_s == pytest.approx(2 * step_s)
    assert timeline.exposed_s[0] == pytest.approx({0: 1.5, 1: 1.5})


def test_buckets_that_end_within_the_backward_pass_cost_nothing() -> None:
    timeline = simulated("dp=2,microbatches=3", buckets=[Bucket(1.5, 1.0), Bucket(0.2, 0.1)])
    assert timeline.makespan_s == 3 * BOTH
    assert timeline.exposed_s[0] == {}


def test_staleness_hides_what_takes_no_longer_than_a_step() -> None:
    hidden = simulated("dp=2,staleness=1", 10, buckets=[Bucket(0.0, 2.9)])
    longer = simulated("dp=2,staleness=1", 10, buckets=[Bucket(0.0, 4.0)])
    assert hidden.makespan_s == pytest.approx(10 * BOTH + 2.9)
    assert longer.makespan_s == pytest.approx(BOTH + 10 * 4.0)


@pytest.mark.parametrize(
    ("share", "step_s"), [(0.0, 4.0), (0.25, 4.0), (0.5, 5.0), (1.0, 7.0), (1.25, 8.0)]
)
def test_only_waiting_hides_the_processor_time_of_averages(share: float, step_s: float) -> None:
    """Passes of 3 s and averages of 4 s: a step takes 4 s, or 3 s and the processor time."""

    def makespan_s(steps: int, text: str, bucket: Bucket) -> float:
        plan = ParallelPlan.parse(text)
        costs = replace(costs_of(plan, buckets=[bucket]), averaging_work=share)
        return simulate(programs_of(plan, steps), costs).makespan_s

    delayed, own = "dp=2,staleness=1", Bucket(0.0, 4.0)
    assert makespan_s(9, delayed, own) - makespan_s(8, delayed, own) == pytest.approx(step_s)
    # They start 1 s before the passes end, and the rank waits for the rest.
    waits_s = 3.0 + max(0.0, 4.0 * share - 3.0 * max(1.0, share))
    assert makespan_s(1, "dp=2", Bucket(1.0, 4.0)) == pytest.approx(BOTH + waits_s)
    assert makespan_s(1, "dp=2", own) == pytest.approx(BOTH + 4.0)


def test_blocking_averages_follow_the_last_pass() -> None:
    timeline = simulated("dp=2,sync=blocking,microbatches=2", buckets=[Bucket(0.0, 1.5)])
    assert timeline.makespan_s == 2 * BOTH + 1.5


def test_a_stage_sends_its_last_gradient_once_it_has_averaged() -> None:
    """As DistributedDataParallel waits in the backward pass, averages of stages add up."""
    text = "dp=2,pp=2,microbatches=2"
    alone, averaged = simulated(text), simulated(text, buckets=[Bucket(0.0, 1.0)])
    assert averaged.makespan_s == alone.makespan_s + 2.0
    delayed = simulated(f"{text},staleness=1", buckets=[Bucket(0.0, 1.0)])
    assert delayed.makespan_s == alone.makespan_s + 1.0


def test_clipping_makes_ranks_wait_for_each_other() -> None:
    timeline = simulated("pp=3,microbatches=3", clip_s=0.5, update_s=0.25)
    for program, ends in zip(timeline.programs, timeline.end_s, strict=True):
        update = next(n for n, a in enumerate(program) if a.kind is ActionKind.UPDATE)
        assert ends[update] == BOTH * 5 + 0.5 + 0.25
    assert [waits[0] for waits in timeline.exposed_s] == [0.5] * 3


def test_programs_that_wait_for_each_other_are_refused() -> None:
    plan = ParallelPlan.parse("pp=2,microbatches=2")
    programs = programs_of(plan)
    del programs[1][-3]
    programs[1] = [a for a in programs[1] if a.kind is not ActionKind.SEND_GRADIENT]
    with pytest.raises(ValueError, match="deadlock: ranks 0 wait forever"):
        simulate(programs, costs_of(plan))


def test_a_hundred_thousand_actions_are_each_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank is taken up again only by what it waited for, so the work grows with the actions."""
    plan = ParallelPlan.parse("dp=2,pp=16,microbatches=32,staleness=1,flush=off")
    programs = programs_of(plan, steps=34)
    taken_up = []
    advance = _Simulation._advance

    def counted(simulation: _Simulation, rank: int) -> None:
        taken_up.append(rank)
        advance(simulation, rank)

    monkeypatch.setattr(_Simulation, "_advance", counted)
    timeline = simulate(programs, costs_of(plan, occupied_s=0.01, update_s=0.1))

    actions = sum(map(len, programs))
    assert actions >= 100_000
    assert [len(ends) for ends in timeline.end_s] == [len(program) for program in programs]
    receives = (ActionKind.RECEIVE_ACTIVATION, ActionKind.RECEIVE_GRADIENT)
    waits = sum(action.kind in receives for program in programs for action in program)
    assert len(taken_up) <= plan.pp + waits
