from __future__ import annotations

import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of

THIRDS = (slice(0, 2), slice(2, 4), slice(4, 6))


def test_stages_keep_the_parameter_names_of_the_chain() -> None:
    chain = chain_of(find_task("resnet/laptop"), seed=0)

    whole = Stage(chain.units).state_dict()
    parts = [Stage(chain.units[cut]).state_dict() for cut in THIRDS]

    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert {name.split(".")[0] for name in whole} == {
        "stem",
        "layer1",
        "layer2",
        "layer3",
        "layer4",
        "head",
    }


def test_consecutive_stages_compute_what_the_whole_chain_does() -> None:
    chain = chain_of(find_task("resnet/laptop"), seed=0)
    inputs, _ = chain.example(4)

    whole = Stage(chain.units).eval()(inputs)
    outputs = inputs
    for cut in THIRDS:
        outputs = Stage(chain.units[cut]).eval()(outputs)

    assert torch.equal(outputs, whole)
    assert outputs.is_contiguous()


def test_gradients_for_the_previous_stage_are_contiguous() -> None:
    """What crosses a link is contiguous, whatever layout the stage computes in."""
    chain = chain_of(find_task("resnet/laptop"), seed=0)
    inputs = torch.randn(2, 64, 16, 16, requires_grad=True)
    seen: list[bool] = []
    inputs.register_hook(lambda gradient: seen.append(gradient.is_contiguous()))

    Stage(chain.units[2:]).train()(inputs).sum().backward()

    assert seen == [True]
