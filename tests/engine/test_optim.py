from __future__ import annotations

import math

import pytest
import torch

from reference_impls.engine.optim import build_optimizer, learning_rate
from reference_impls.engine.stage import Stage
from reference_impls.models import chain_of
from suite.tasks.registry import find_task

FACTS = find_task("resnet/laptop").optimizer
STEPS = 37


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
def test_learning_rate_rises_in_a_line_and_falls_as_half_a_cosine(
    step: int, expected: float
) -> None:
    assert math.isclose(learning_rate(step, STEPS, FACTS), expected, abs_tol=1e-12)


def test_parameters_of_one_dimension_do_not_decay() -> None:
    stage = Stage(chain_of(find_task("resnet/laptop"), seed=0).units)

    decaying, exempt = build_optimizer(stage, FACTS).param_groups

    assert decaying["weight_decay"] == FACTS.weight_decay
    assert exempt["weight_decay"] == 0.0
    assert all(parameter.dim() > 1 for parameter in decaying["params"])
    assert all(parameter.dim() == 1 for parameter in exempt["params"])
    assert len(decaying["params"]) + len(exempt["params"]) == len(list(stage.parameters()))


def test_a_step_follows_the_formula_of_nesterov_momentum() -> None:
    """Sutskever et al. 2013, in the form of torch: v = m v + g, w = w - lr (g + m v)."""
    weight = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.ones_(weight.weight)
    optimizer = build_optimizer(weight, FACTS)
    expected, velocity = 1.0, 0.0

    for gradient in (0.5, -0.25, 1.0):
        weight.weight.grad = torch.full((2, 1), gradient)
        optimizer.step()
        decayed = gradient + FACTS.weight_decay * expected
        velocity = FACTS.momentum * velocity + decayed if velocity else decayed
        expected -= FACTS.lr * (decayed + FACTS.momentum * velocity)

    assert torch.allclose(weight.weight, torch.full((2, 1), expected), rtol=1e-6)
