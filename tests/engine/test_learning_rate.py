from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.optim import learning_rate

if TYPE_CHECKING:
    from hybridperf.tasks.task import Decay

CONFIG = find_task("resnet/laptop").optimizer
STEPS = 37
WARM, LAST = 2 * STEPS, 14 * STEPS


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.1 / 74),
        (36, 0.05),
        (73, 0.1),
        (74, 0.1),
        (74 + 222, 0.05),
        (74 + 444, 0.0),
        (10_000, 0.0),
    ],
)
def test_the_warm_up_is_linear_and_the_decay_half_a_cosine(step: int, expected: float) -> None:
    assert math.isclose(learning_rate(step, STEPS, CONFIG), expected, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "power", "halfway"),
    [("cosine", 9.0, 0.55), ("linear", 9.0, 0.55), ("poly", 1.0, 0.55), ("poly", 2.0, 0.325)],
)
def test_schedules_decay_from_lr_to_end_lr(schedule: Decay, power: float, halfway: float) -> None:
    config = dataclasses.replace(CONFIG, lr=1.0, end_lr=0.1, schedule=schedule, power=power)

    rates = [learning_rate(step, STEPS, config) for step in (WARM, (WARM + LAST) // 2, LAST, 9999)]

    assert rates == pytest.approx([1.0, halfway, 0.1, 0.1])


def test_a_constant_rate_stays_after_the_warm_up() -> None:
    config = dataclasses.replace(CONFIG, schedule="constant")

    assert {learning_rate(step, STEPS, config) for step in range(WARM, 2 * LAST)} == {0.1}


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(0.0, [0.1, 0.1]), (0.01, [0.1, 0.1]), (2.5 / STEPS, [0.04, 0.08, 0.1, 0.1])],
)
def test_a_warm_up_may_be_a_fraction_of_an_epoch(epochs: float, expected: list[float]) -> None:
    config = dataclasses.replace(CONFIG, schedule="constant", warmup_epochs=epochs)

    rates = [learning_rate(step, STEPS, config) for step in range(len(expected))]

    assert rates == pytest.approx(expected)


@given(
    schedule=st.sampled_from(["cosine", "poly", "linear", "constant"]),
    warmup_epochs=st.floats(0, 3),
    decay_epochs=st.integers(1, 4),
    power=st.floats(0.25, 4),
    steps=st.integers(1, 20),
)
def test_every_schedule_only_decays_after_the_warm_up(
    schedule: Decay, warmup_epochs: float, decay_epochs: int, power: float, steps: int
) -> None:
    config = dataclasses.replace(
        CONFIG,
        schedule=schedule,
        warmup_epochs=warmup_epochs,
        decay_epochs=decay_epochs,
        power=power,
    )

    rates = [learning_rate(step, steps, config) for step in range(8 * steps)]

    warm = math.ceil(warmup_epochs * steps)
    assert all(0 <= rate <= config.lr * (1 + 1e-12) for rate in rates)
    assert all(before <= after for before, after in pairwise(rates[:warm]))
    assert all(before >= after for before, after in pairwise(rates[warm:]))


def _rate_of_mlperf(
    step: int, *, lr: float, total: int, power: float, warmup: int, start: int
) -> float:
    """Return the rate of MLPerf's BERT (mlcommons/training, retired_benchmarks/bert)."""
    if warmup and step - start < warmup:
        return (step - start) / warmup * lr
    return lr * float((1 - min(step, total) / total) ** power)


@pytest.mark.parametrize("start", [-700, -76, 0])
@pytest.mark.parametrize("warmup", [0, 100, 287])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_schedule_of_mlperf_s_bert_is_that_of_its_reference(
    start: int, warmup: int, power: float
) -> None:
    config = dataclasses.replace(
        CONFIG,
        lr=0.002,
        end_lr=0.0,
        schedule="poly",
        power=power,
        warmup_epochs=0.0,
        decay_epochs=0,
        warmup_steps=warmup,
        start_warmup_step=start,
        decay_steps=1141,
        decay_from="start",
    )

    rates = [learning_rate(step, STEPS, config) for step in range(1200)]

    expected = [
        _rate_of_mlperf(step, lr=0.002, total=1141, power=power, warmup=warmup, start=start)
        for step in range(1200)
    ]
    assert rates == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("start", "decay_from", "expected"),
    [
        (0, "start", {0: 0.0, 50: 0.05, 99: 0.099, 100: 0.09, 500: 0.05, 1000: 0.0}),
        (-76, "start", {0: 0.076, 23: 0.099, 24: 0.0976, 1000: 0.0}),
        (-700, "start", {0: 0.1, 500: 0.05}),
        (0, "warmup", {0: 0.0, 100: 0.1, 550: 0.05, 1000: 0.0}),
        (-76, "warmup", {0: 0.076, 24: 0.1, 512: 0.05, 1000: 0.0}),
        (-700, "warmup", {0: 0.1, 500: 0.05}),
    ],
)
def test_a_warm_up_in_steps_may_begin_before_the_run(
    start: int, decay_from: Literal["start", "warmup"], expected: dict[int, float]
) -> None:
    config = dataclasses.replace(
        CONFIG,
        schedule="linear",
        warmup_epochs=0.0,
        decay_epochs=0,
        warmup_steps=100,
        start_warmup_step=start,
        decay_steps=1000,
        decay_from=decay_from,
    )

    assert {step: learning_rate(step, STEPS, config) for step in expected} == pytest.approx(
        expected
    )
