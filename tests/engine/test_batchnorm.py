from __future__ import annotations

import torch
from torch import Tensor, nn

from reference_impls.engine.batchnorm import apply_batch_norm, commit_statistics, frozen_statistics
from reference_impls.engine.chain import Unit
from reference_impls.engine.mesh import Mesh
from suite.plan import ParallelPlan

DEFERRED = ParallelPlan(microbatches=4, bn="deferred")
HERE = Mesh(torch.device("cpu"), None)


def batches() -> Tensor:
    """Return four micro-batches far from zero, where a sum of squares would lose its digits."""
    return torch.randn(4, 8, 3, 5, 5, generator=torch.Generator().manual_seed(1)) + 1000


def plain() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3)).train()


def deferred() -> nn.Module:
    (unit,) = apply_batch_norm([Unit("unit", plain())], plan=DEFERRED, mesh=HERE)
    return unit.module


def assert_same_statistics(module: nn.Module, other: nn.Module) -> None:
    mine, theirs = module.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], rtol=1e-5), name


def test_deferred_statistics_are_those_of_all_samples_of_a_step() -> None:
    module, whole = deferred(), plain()
    before = deferred().state_dict()

    for batch in batches():
        module(batch)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), "not before the step ends"
    commit_statistics(module)
    whole(batches().flatten(0, 1))

    assert_same_statistics(module, whole)


def test_two_steps_of_deferred_statistics_move_as_two_batches_do() -> None:
    module, whole = deferred(), plain()

    for half in batches().split(2):
        for batch in half:
            module(batch)
        commit_statistics(module)
        whole(half.flatten(0, 1))

    assert_same_statistics(module, whole)
    outputs = module.eval()(batches()[0])
    assert torch.allclose(outputs, whole.eval()(batches()[0]), rtol=1e-5)


def test_deferred_layers_normalise_by_micro_batch() -> None:
    batch = batches()[0]

    assert torch.equal(deferred()(batch), plain()(batch))


def test_a_forward_pass_that_repeats_another_leaves_statistics_alone() -> None:
    for module in (plain(), deferred()):
        outputs = module(batches()[0])
        before = {name: value.clone() for name, value in module.named_buffers()}

        with frozen_statistics(module):
            again = module(batches()[0])

        assert torch.equal(again, outputs)
        for name, value in module.named_buffers():
            assert torch.equal(value, before[name]), name
