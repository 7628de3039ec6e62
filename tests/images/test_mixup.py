"""Mixup: drawn by seed, epoch and sample, the same however a batch is divided."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hybridperf.tasks.data import Samples, load
from hybridperf.tasks.registry import find_task
from hybridperf_reference.images.objective import Mixup, draw_partners, image_objective
from tests.images.jpegs import encoded_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective

ALPHA = 0.4
SEED, EPOCH = 7, 3
INDICES = np.array([5, 0, 17, 3, 8, 11])


def _mixing(task: Task, alpha: float = ALPHA) -> Task:
    return dataclasses.replace(task, training=dataclasses.replace(task.training, mixup=alpha))


def _case(name: str) -> tuple[Task, Samples, int]:
    """Return a task, some of its samples, and the width of its images."""
    generator = np.random.default_rng(0)
    if name == "digits":
        task = find_task("resnet/laptop")
        return task, load(task.data).train, 16
    if name == "cifar10":
        images = generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
        return find_task("resnet/workstation"), Samples(images, np.arange(20) % 10), 32
    pytest.importorskip("torchvision")
    return find_task("vit/cluster"), encoded_samples(20), 32


def _read(
    objective: Objective, samples: Samples, indices: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets."""
    which = samples, indices, SEED, EPOCH
    return objective.prepare(*objective.read(*which)), objective.targets(*which)


KINDS = ["digits", "cifar10", "pictures"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_mixes_its_image_and_its_partner_by_their_weights(kind: str) -> None:
    task, samples, size_px = _case(kind)
    mixed, plain = (image_objective(_mixing(task, alpha), size_px) for alpha in (ALPHA, 0.0))

    inputs, targets = _read(mixed, samples, INDICES)

    partners, shares = draw_partners(SEED, EPOCH, len(samples), ALPHA)
    own, labels = _read(plain, samples, INDICES)
    other, others = _read(plain, samples, partners[INDICES])
    assert labels.dtype == torch.int64
    for row, share in enumerate(shares[INDICES].tolist()):
        torch.testing.assert_close(inputs[row], share * own[row] + (1 - share) * other[row])
        expected = torch.zeros(targets.shape[1])
        expected[labels[row]] += share
        expected[others[row]] += 1 - share
        torch.testing.assert_close(targets[row], expected)
    assert isinstance(mixed, Mixup)
    assert mixed.reads_ahead is plain.reads_ahead


@pytest.mark.parametrize("kind", KINDS)
def test_two_replicas_train_on_the_mixtures_of_one_process(kind: str) -> None:
    task, samples, size_px = _case(kind)

    def read(indices: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        objective = image_objective(_mixing(task), size_px)
        return _read(objective, samples, indices)

    draw_partners.cache_clear()
    whole = read(INDICES)
    draw_partners.cache_clear()
    parts = [read(INDICES[:3]), read(INDICES[3:])]

    for one, both in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(one, torch.cat(both))
    objective = image_objective(_mixing(task), size_px)
    torch.manual_seed(0)
    weight = torch.randn(whole[0][0].numel(), whole[1].shape[1], requires_grad=True)
    losses = [objective.loss(x.flatten(1) @ weight / 100, y) for x, y in (whole, *parts)]
    gradient, *halves = (torch.autograd.grad(loss, weight)[0] for loss in losses)
    torch.testing.assert_close(losses[0], losses[1] + losses[2])
    torch.testing.assert_close(gradient, halves[0] + halves[1])


def test_evaluation_and_predictions_are_not_mixed() -> None:
    task, samples, size_px = _case("cifar10")
    mixed, plain = (image_objective(_mixing(task, alpha), size_px) for alpha in (ALPHA, 0.0))
    outputs = torch.randn(4, 10)

    assert torch.equal(mixed.evaluation(samples.inputs[:4]), plain.evaluation(samples.inputs[:4]))
    assert torch.equal(mixed.predictions(outputs), plain.predictions(outputs))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_applies_to_mixed_labels(smoothing: float) -> None:
    """The loss of a mixture is the mixture of its two labels' smoothed losses."""
    task, samples, size_px = _case("digits")
    training = dataclasses.replace(task.training, label_smoothing=smoothing)
    task = dataclasses.replace(task, training=training)
    mixed, plain = (image_objective(_mixing(task, alpha), size_px) for alpha in (ALPHA, 0.0))
    outputs = torch.randn(len(INDICES), 10)

    targets = mixed.targets(samples, INDICES, SEED, EPOCH)

    partners, shares = draw_partners(SEED, EPOCH, len(samples), ALPHA)
    expected = 0.0
    for row, index in enumerate(INDICES):
        own, other = (
            plain.loss(outputs[row : row + 1], torch.tensor([samples.labels[place]])).item()
            for place in (index, partners[index])
        )
        expected += float(shares[index]) * own + (1 - float(shares[index])) * other
    assert mixed.loss(outputs, targets).item() == pytest.approx(expected, rel=1e-5)


def test_weights_follow_the_beta_distribution_and_partners_the_whole_set() -> None:
    partners, shares = draw_partners(1, 1, 20_000, 0.2)

    # Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2a + 1)).
    assert shares.mean() == pytest.approx(0.5, abs=0.01)
    assert shares.var() == pytest.approx(1 / (4 * 1.4), abs=0.01)
    assert 0 <= shares.min() < shares.max() <= 1
    counts = np.bincount(partners, minlength=20_000)
    assert len(counts) == 20_000
    assert counts.max() < 12
    for other in (draw_partners(1, 2, 20_000, 0.2), draw_partners(2, 1, 20_000, 0.2)):
        assert not np.array_equal(partners, other[0])
        assert not np.array_equal(shares, other[1])


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 100.0])
def test_every_allowed_alpha_gives_valid_weights(alpha: float) -> None:
    _, shares = draw_partners(1, 1, 1_000, alpha)

    assert np.isfinite(shares).all()
    assert 0 <= shares.min() <= shares.max() <= 1
