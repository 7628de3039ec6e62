"""BatchNorm's modes in one process: statistics, gradients, precision, and layers of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.batchnorm import apply_batch_norm, commit_statistics
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.mesh import Mesh
from tests.engine.batchnorm_worlds import MEANS, images, passed, synchronize
from tests.engine.ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEFERRED = ParallelPlan(microbatches=4, bn="deferred")
SHARED = ParallelPlan(dp=2, bn="sync")
HERE = Mesh(torch.device("cpu"), None)  # one replica: nothing to communicate
CHANNELS = 3


class Activated(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: what torch's layer does, written out, and an activation."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        outputs = functional.batch_norm(
            inputs,
            self.running_mean if not self.training or self.track_running_stats else None,
            self.running_var if not self.training or self.track_running_stats else None,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.1,
            self.eps,
        )
        return functional.silu(outputs)


class Doubled(nn.BatchNorm2d):
    """What it normalises is not what it is given."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * 2 + 1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm2d(CHANNELS),
    "without scale and bias": lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    "cumulative": lambda: nn.BatchNorm2d(CHANNELS, momentum=None),
    "without running statistics": lambda: nn.BatchNorm2d(CHANNELS, track_running_stats=False),
    "activated": lambda: Activated(CHANNELS),
    "doubled": lambda: Doubled(CHANNELS),
}
every_layer = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)


def batches(mean: float = 1000) -> Tensor:
    """Return four micro-batches, far from zero where a sum of squares would lose its digits."""
    return torch.randn(4, 8, CHANNELS, 5, 5, generator=torch.Generator().manual_seed(1)) + mean


def under(plan: ParallelPlan, build: Callable[[], nn.Module]) -> nn.Module:
    module = nn.Sequential(build()).train()
    apply_batch_norm([Unit("unit", module)], plan=plan, mesh=HERE)
    return module


def assert_same_statistics(module: nn.Module, other: nn.Module) -> None:
    mine, theirs = module.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], rtol=1e-5), name


@every_layer
def test_deferred_statistics_are_those_of_all_samples_of_a_step(
    build: Callable[[], nn.Module],
) -> None:
    module, whole = under(DEFERRED, build), nn.Sequential(build()).train()

    for half in batches().split(2):
        before = {name: value.clone() for name, value in module.state_dict().items()}
        for batch in half:
            module(batch)
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), "not before the step ends"
        commit_statistics(module)
        whole(half.flatten(0, 1))

    assert_same_statistics(module, whole)
    outputs = module.eval()(batches()[0])
    assert torch.allclose(outputs, whole.eval()(batches()[0]), rtol=1e-4, atol=1e-4)


@every_layer
def test_deferred_layers_normalize_by_micro_batch(build: Callable[[], nn.Module]) -> None:
    batch = batches()[0]

    outputs = under(DEFERRED, build)(batch)

    assert torch.equal(outputs, nn.Sequential(build()).train()(batch))


@every_layer
def test_synchronized_layers_compute_what_torch_does(build: Callable[[], nn.Module]) -> None:
    shared, plain = under(SHARED, build).double(), nn.Sequential(build()).train().double()
    found = []
    for module in (shared, plain):
        for parameter in module.parameters():
            parameter.data = torch.linspace(0.5, 1.5, CHANNELS, dtype=torch.float64)
        inputs = batches(mean=1)[0].double().requires_grad_()
        outputs = module(inputs)
        (outputs * torch.linspace(0, 1, 5, dtype=torch.float64)).square().sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        found.append([outputs, inputs.grad, *gradients, *module.state_dict().values()])

    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


class Frozen(nn.BatchNorm2d):
    """Kept in evaluation, as detectors keep their backbone's."""

    def train(self, mode: bool = True) -> Frozen:  # noqa: ARG002 - whatever is asked
        return super().train(mode=False)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_layer_that_saw_nothing_in_a_step_keeps_its_statistics(momentum: float | None) -> None:
    layers = [Frozen(CHANNELS, momentum=momentum), nn.BatchNorm2d(CHANNELS, momentum=momentum)]
    kept, skipped = layers
    module = nn.Sequential(*layers).train()
    apply_batch_norm([Unit("unit", module)], plan=DEFERRED, mesh=HERE)
    kept(images(100))
    commit_statistics(module)
    untouched = [
        {name: value.clone() for name, value in each.state_dict().items()} for each in layers
    ]

    skipped(images(100))
    commit_statistics(module)
    moved = {name: value.clone() for name, value in skipped.state_dict().items()}
    kept(images(1000))
    commit_statistics(module)

    for layer, expected in zip(layers, (untouched[0], moved), strict=True):
        assert all(torch.equal(value, expected[name]) for name, value in layer.state_dict().items())
    assert int(untouched[1]["num_batches_tracked"]) == 0
    assert not untouched[1]["running_mean"].any()
    assert moved["running_mean"].min() > 5


@pytest.mark.parametrize("mean", [100, 1000])
def test_synchronized_layers_are_accurate_for_large_means(mean: float) -> None:
    inputs, exact = batches(mean)[0].requires_grad_(), batches(mean)[0].double().requires_grad_()
    weights = torch.linspace(-1, 1, 5)

    shared = under(SHARED, LAYERS["plain"])
    outputs = shared(inputs)
    (outputs * weights).square().sum().backward()
    whole = nn.Sequential(nn.BatchNorm2d(CHANNELS)).train().double()
    expected = whole(exact)
    (expected * weights).square().sum().backward()

    assert inputs.grad is not None
    assert exact.grad is not None
    for mine, theirs in ((outputs, expected), (inputs.grad, exact.grad)):
        error = (mine.double() - theirs).norm() / theirs.norm()
        assert error < 1e-6
    statistics = shared.state_dict()
    for name, value in whole.state_dict().items():
        assert torch.allclose(statistics[name].double(), value.double(), rtol=1e-6), name


def test_two_replicas_are_accurate_for_large_means(tmp_path: Path) -> None:
    """Compare with fp64: torch's own layer in one process errs by 3e-6 at mean 100 in fp32."""
    run_ranks(2, synchronize, tmp_path, output=tmp_path / "printed.txt")

    ranks = [torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]
    for mean in MEANS:
        exact = passed(nn.Sequential(nn.BatchNorm2d(CHANNELS)).double(), images(mean).double())
        for rank, found in enumerate(ranks):
            for name, value in found[mean].items():
                split = name in {"outputs", "gradient"}
                whole = (exact[name].chunk(2)[rank] if split else exact[name]).double()
                error = (value.double() - whole).norm()
                assert error <= 1e-6 * whole.norm(), f"{name} at mean {mean}"


def test_a_layer_whose_statistics_cannot_be_replaced_is_refused() -> None:
    class Own(nn.BatchNorm2d):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs - inputs.mean(dim=(0, 2, 3), keepdim=True)

    module = under(SHARED, lambda: Own(CHANNELS))

    with pytest.raises(UserError, match=r"Own does not call torch\.nn\.functional\.batch_norm"):
        module(batches()[0])
