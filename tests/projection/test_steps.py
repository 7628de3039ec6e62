"""Pipelines with many micro-batches are projected as if all of them were simulated."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection import project as module
from hybridperf.projection.device import device_timing
from hybridperf.projection.project import Projection, project
from hybridperf.projection.simulate import Timeline, settled_round, settling_plans, simulate
from hybridperf.projection.systems import find_system
from hybridperf.projection.units import load_units
from tests.projection.simulated import costs_of, programs_of

#: what docs/projection.md promises
MOST_OFF = 0.005
SYSTEMS = ("rtx-4090", "rtx-2080ti", "a100-sxm", "a100-pcie", "h100-sxm")
TASKS = ("bert_large/cluster", "vit/cluster", "resnet50/cluster", "vgg/cluster")


def _projected(system: str, task: str, text: str, samples: int) -> Projection:
    """Return the projection of a plan with ``samples`` in each micro-batch."""
    found, units, plan = find_system(system), load_units(task), ParallelPlan.parse(text)
    return project(
        plan,
        units,
        device_timing(found.device, units, plan.precision),
        found.network,
        global_batch_size=plan.dp * plan.microbatches * samples,
        optimizer="sgd",
    )


def _is_as_simulated_whole(
    monkeypatch: pytest.MonkeyPatch, system: str, task: str, text: str, samples: int
) -> bool:
    extrapolated = _projected(system, task, text, samples)
    with monkeypatch.context() as patch:
        patch.setattr(module, "settling_plans", lambda plan: [plan])
        whole = _projected(system, task, text, samples)
    near = pytest.approx(whole.exposed_s, abs=MOST_OFF * whole.step_s)
    return (
        abs(extrapolated.step_s / whole.step_s - 1) <= MOST_OFF and extrapolated.exposed_s == near
    )


def _drawn(draw: random.Random, schedule: str) -> tuple[str, str, str, int]:
    """Return a system, a task, a plan and the samples of a micro-batch."""
    system, ranks, replicas = draw.choice(SYSTEMS), draw.choice([2, 4]), draw.choice([1, 2, 4])
    count = ranks * draw.choice([5, 8, 12, 16, 40])
    options = ["", "zero=1", "zero=2"] if schedule != "zbv" else ["sync=blocking", "zero=2"]
    extra = draw.choice(options) if replicas > 1 else ""
    precision = "fp32" if "2080" in system else "bf16"
    parts = [
        f"dp={replicas},pp={ranks},schedule={schedule},microbatches={count},precision={precision}",
        *([extra] if extra else []),
    ]
    return system, draw.choice(TASKS), ",".join(parts), draw.choice([1, 2, 8])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zbv"])
def test_a_random_sample_takes_what_all_micro_batches_take(
    monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    draw = random.Random(2)
    cases = [_drawn(draw, schedule) for _ in range(25)]

    off = [case for case in cases if not _is_as_simulated_whole(monkeypatch, *case)]

    assert off == []


@pytest.mark.parametrize(
    ("system", "task", "text", "samples"),
    [
        # Until the last rank has caught up with its long update, rounds take less time.
        *[
            ("rtx-2080ti", "vgg/cluster", f"dp=2,pp=4,schedule=gpipe,microbatches={count}{sync}", 4)
            for count in (32, 64)
            for sync in ("", ",sync=blocking")
        ],
        (
            "rtx-4090",
            "bert_large/cluster",
            "dp=4,zero=1,pp=2,schedule=zbv,cuts=9-15-21,microbatches=64,precision=bf16",
            32,
        ),
        ("rtx-2080ti", "resnet50/cluster", "pp=4,schedule=zbv,microbatches=64", 8),
    ],
)
def test_rounds_that_settle_late_are_not_extrapolated_before(
    monkeypatch: pytest.MonkeyPatch, system: str, task: str, text: str, samples: int
) -> None:
    assert _is_as_simulated_whole(monkeypatch, system, task, text, samples)


def _simulated(text: str, **costs: Any) -> tuple[ParallelPlan, Timeline]:
    plan = ParallelPlan.parse(text)
    return plan, simulate(programs_of(plan, 2), costs_of(plan, **costs))


def test_a_settled_round_takes_the_passes_of_the_slowest_rank() -> None:
    plan, timeline = _simulated("pp=2,microbatches=8", forward_s=(1, 2), backward_s=(2, 4))

    found = settled_round(timeline, plan, 1)

    assert found is not None
    assert found.seconds == 2 * 6
    assert found.spread_s == 0
    assert found.exposed_s == (0, 0)


def test_what_each_round_waits_for_messages_is_exposed() -> None:
    plan, timeline = _simulated("pp=2,microbatches=8", latency_s=1.0)

    found = settled_round(timeline, plan, 1)

    assert found is not None
    assert found.spread_s == pytest.approx(0)
    assert found.seconds == pytest.approx(2 * 4)  # 1 s more: there and back, of two in flight
    _, longer = _simulated("pp=2,microbatches=10", latency_s=1.0)
    assert (
        0 < found.exposed_s[0] == pytest.approx(longer.exposed_s[0][1] - timeline.exposed_s[0][1])
    )


def test_rounds_that_are_not_alike_do_not_settle() -> None:
    plan, timeline = _simulated("pp=4,microbatches=8")  # of which the first fills the pipeline

    assert settled_round(timeline, replace(plan, microbatches=16), 0) is None


def test_all_micro_batches_are_simulated_at_last() -> None:
    for text in ("pp=2,microbatches=25", "pp=2,microbatches=100,schedule=gpipe", "dp=2"):
        *fewer, last = settling_plans(ParallelPlan.parse(text))

        assert str(last) == str(ParallelPlan.parse(text))
        assert all(each.microbatches < last.microbatches for each in fewer)
        assert not fewer or last.schedule != "gpipe"


def test_a_negative_part_of_a_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_compute_s", lambda *_: -1e-3)

    with pytest.raises(ArithmeticError, match=r"has a part of -0\.001 s"):
        _projected("a100-sxm", "resnet50/cluster", "dp=2,precision=bf16", 8)
