from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import pipelining

from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.schedules import ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.schedules import Schedule

#: F, B, I or W (backward pass: whole, for inputs, for weights), stage, micro-batch
Action = tuple[str, int, int]
Program = list[Action]

#: a backward pass takes as long as two forward passes
SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
LETTERS = {
    ActionKind.FORWARD: "F",
    ActionKind.BACKWARD: "B",
    ActionKind.BACKWARD_INPUT: "I",
    ActionKind.BACKWARD_WEIGHT: "W",
}
CASES = [
    (name, ranks, stages, microbatches)
    for name, schedule in SCHEDULES.items()
    for ranks in (2, 3, 4)
    for stages in ((2, 3, 4) if schedule.stages_vary else (schedule.stages,))
    for microbatches in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
    if schedule.next_microbatches(ranks, microbatches) == microbatches
]


def torch_schedule(schedule: Schedule, ranks: int, stages: int, microbatches: int) -> Any:
    """Return torch's schedule as rank 0 builds it, whose other ranks are not there."""
    held = [
        pipelining.PipelineStage(
            torch.nn.Identity(),
            stage,
            ranks * stages,
            torch.device("cpu"),
            input_args=(torch.zeros(1),),
            output_args=(torch.zeros(1),),
        )
        for stage in schedule.placement(0, ranks, stages)
    ]
    own = held if stages > 1 else held[0]
    return getattr(pipelining, schedule.runtime)(own, microbatches, loss_fn=torch.sum)


@pytest.fixture(params=(2, 3, 4))
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield a number of ranks, with a process group that sends nothing."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=request.param, store=fake.FakeStore())
    yield request.param
    dist.destroy_process_group()


def torch_programs(built: Any) -> list[Program]:
    return [
        [
            (action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in actions
            if action is not None
        ]
        for _, actions in sorted(built.pipeline_order.items())
    ]


def one_stage_programs(name: str, ranks: int, microbatches: int) -> list[Program]:
    """Return the orders of GPipe and 1F1B, whose torch classes do not tell theirs."""
    programs = []
    for rank in range(ranks):
        ahead = microbatches if name == "gpipe" else min(microbatches, ranks - rank)
        program: Program = [("F", rank, number) for number in range(ahead)]
        for number in range(microbatches):
            program.append(("B", rank, number))
            if ahead + number < microbatches:
                program.append(("F", rank, ahead + number))
        programs.append(program)
    return programs


def simulated(programs: list[Program], stages: int) -> tuple[float, float]:
    """Return the idle share and the most activations that a rank holds, sending taking no time."""
    last = len(programs) * stages - 1
    ends: dict[Action, float] = {}
    clocks, ahead, held, most = ([0.0] * len(programs) for _ in range(4))

    def needs(kind: str, stage: int, number: int) -> list[Action]:
        if kind == "F":
            return [("F", stage - 1, number)] if stage else []
        if kind == "W":
            return [("I", stage, number)]
        after = ("B" if kind == "B" else "I", stage + 1, number)
        return [("F", stage, number), *([after] if stage < last else [])]

    queues = [list(reversed(program)) for program in programs]
    while any(queues):
        before = len(ends)
        for rank, queue in enumerate(queues):
            while queue and all(need in ends for need in needs(*queue[-1])):
                action = queue.pop()
                begin = max([clocks[rank], *(ends[need] for need in needs(*action))])
                clocks[rank] = ends[action] = begin + SECONDS[action[0]] / stages
                ahead[rank] += SECONDS[action[0]] / stages
                held[rank] += {"F": 1, "B": -1, "I": 0, "W": -1}[action[0]] / stages
                most[rank] = max(most[rank], held[rank])
        assert len(ends) > before, "deadlock"
    return 1 - sum(ahead) / len(programs) / max(clocks), max(most)


def assert_formulas(name: str, programs: list[Program], stages: int, microbatches: int) -> None:
    schedule, ranks = SCHEDULES[name], len(programs)
    numbers = (ranks, stages, microbatches)
    for rank, program in enumerate(programs):
        assert {action[1] for action in program} == {*schedule.placement(rank, ranks, stages)}
    idle_share, activations = simulated(programs, stages)
    assert schedule.idle_share.value(*numbers) == pytest.approx(idle_share)
    assert schedule.activations.value(*numbers) == pytest.approx(activations)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].stages > 1])
def test_formulas_and_placement_match_torch(name: str, ranks: int) -> None:
    for _, _, stages, microbatches in (case for case in CASES if case[:2] == (name, ranks)):
        programs = torch_programs(torch_schedule(SCHEDULES[name], ranks, stages, microbatches))
        assert_formulas(name, programs, stages, microbatches)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].stages == 1])
def test_formulas_hold_with_one_stage_on_each_rank(name: str) -> None:
    for _, p, v, m in (case for case in CASES if case[0] == name):
        assert_formulas(name, one_stage_programs(name, p, m), v, m)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_text_of_a_formula_gives_its_value(schedule: Schedule) -> None:
    for _, p, v, m in (case for case in CASES if case[0] == schedule.name):
        for formula in (schedule.idle_share, schedule.activations):
            names = {"p": p, "v": v, "m": m, "max": max, "min": min}
            stated = eval(formula.text, {"__builtins__": {}}, names)  # of our own registry
            assert formula.value(p, v, m) == pytest.approx(stated)


@pytest.mark.parametrize("name", SCHEDULES)
def test_torch_accepts_exactly_the_allowed_micro_batches(name: str, ranks: int) -> None:
    schedule = SCHEDULES[name]
    for microbatches in range(1, 15):
        number = schedule.next_microbatches(ranks, microbatches)
        assert number >= microbatches
        assert schedule.next_microbatches(ranks, number) == number
        if number == microbatches:
            torch_schedule(schedule, ranks, schedule.stages, microbatches)
        else:
            with pytest.raises(ValueError, match="umber of microbatches"):
                torch_schedule(schedule, ranks, schedule.stages, microbatches)


def test_stages_are_placed_round_robin_or_in_a_v() -> None:
    interleaved = ParallelPlan.parse("pp=2,schedule=interleaved,stages=3")
    folded = ParallelPlan.parse("pp=3,schedule=zbv")

    assert [interleaved.stages_of(rank) for rank in range(2)] == [(0, 2, 4), (1, 3, 5)]
    assert [folded.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_diagrams_show_the_order_and_its_bubble(schedule: Schedule) -> None:
    lines = (schedule.order.__doc__ or "").splitlines()
    rows = [line.split()[2:] for line in lines if line.lstrip().startswith("rank ")]
    microbatches = max(int(cell[1:]) for cell in rows[0] if cell[1:]) + 1
    ranks, stages = len(rows), schedule.stages
    for rank, cells in enumerate(rows):
        placed = schedule.placement(rank, ranks, stages)
        shown = [
            (cell[0].upper(), placed[cell[0].islower()], int(cell[1:]))
            for cell in cells
            if cell not in (".", "-")
        ]
        assert shown == [
            (LETTERS[each.kind], each.stage, each.microbatch)
            for each in schedule.order(rank, ranks, stages, microbatches)
        ]
    idle = sum(row.count(".") for row in rows) / sum(map(len, rows))
    assert idle == pytest.approx(schedule.idle_share.value(ranks, stages, microbatches))
