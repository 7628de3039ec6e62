from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.optim import AdamW, Lamb, Lars, Sgd, build_optimizer
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from hybridperf.tasks.task import OptimizerName

CONFIG = find_task("resnet/laptop").optimizer


def test_parameters_of_one_dimension_have_no_weight_decay() -> None:
    stage = Stage(chain_of(find_task("resnet/laptop"), seed=0).units)

    decaying, exempt = build_optimizer(stage, CONFIG).param_groups

    assert decaying["weight_decay"] == CONFIG.weight_decay
    assert exempt["weight_decay"] == 0.0
    assert all(parameter.dim() > 1 for parameter in decaying["params"])
    assert all(parameter.dim() == 1 for parameter in exempt["params"])
    assert len(decaying["params"]) + len(exempt["params"]) == len(list(stage.parameters()))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", Sgd), ("adamw", AdamW), ("lars", Lars), ("lamb", Lamb)],
)
def test_the_task_selects_the_optimizer(
    name: OptimizerName, kind: type[torch.optim.Optimizer]
) -> None:
    config = dataclasses.replace(CONFIG, name=name, lr=0.25, weight_decay=0.5, beta2=0.75)

    optimizer = build_optimizer(torch.nn.Linear(2, 3), config)

    assert type(optimizer) is kind
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    if name in {"adamw", "lamb"}:
        group = optimizer.param_groups[0]
        assert group.get("betas", (group.get("beta1"), group.get("beta2"))) == (0.9, 0.75)


def test_a_step_of_adamw_follows_its_formula() -> None:
    """Loshchilov and Hutter 2019, algorithm 2: decay is no part of the gradient."""
    config = dataclasses.replace(CONFIG, name="adamw", lr=0.1, weight_decay=0.5)
    weight = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(weight.weight)
    optimizer = build_optimizer(weight, config)
    weight.weight.grad = torch.tensor([[-3.0]])

    optimizer.step()

    assert weight.weight.item() == pytest.approx(1 - 0.1 * 0.5 + 0.1)  # moments in balance


def test_a_step_of_sgd_follows_the_formula_of_nesterov_momentum() -> None:
    """Sutskever et al. 2013, in the form of torch: v = m v + g, w = w - lr (g + m v)."""
    weight = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.ones_(weight.weight)
    optimizer = build_optimizer(weight, CONFIG)
    expected, velocity = 1.0, 0.0

    for gradient in (0.5, -0.25, 1.0):
        weight.weight.grad = torch.full((2, 1), gradient)
        optimizer.step()
        decayed = gradient + CONFIG.weight_decay * expected
        velocity = CONFIG.momentum * velocity + decayed if velocity else decayed
        expected -= CONFIG.lr * (decayed + CONFIG.momentum * velocity)

    assert torch.allclose(weight.weight, torch.full((2, 1), expected), rtol=1e-6)
