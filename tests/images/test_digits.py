from __future__ import annotations

import dataclasses

import numpy as np
import torch

from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task
from hybridperf_reference.images.objective import affine, draw_affine, normalize

TASK = find_task("resnet/laptop")
IDENTITY = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]])


def test_training_images_are_normalized_by_the_mean_and_deviation_of_the_task() -> None:
    images = torch.from_numpy(load(TASK.data).train.inputs)

    inputs = normalize(images, data=TASK.data, size_px=8)

    assert inputs.shape == (1195, 1, 8, 8)
    assert abs(inputs.mean().item()) < 1e-3
    assert abs(inputs.std().item() - 1) < 1e-3


def test_the_identity_map_changes_nothing() -> None:
    images = torch.randn(1, 1, 16, 16)

    assert torch.allclose(affine(images, IDENTITY), images, atol=1e-5)


def test_a_shift_by_one_pixel_moves_the_image_by_one_pixel() -> None:
    images = torch.randn(1, 1, 16, 16)
    numbers = IDENTITY.clone()
    numbers[0, 2] = 2 / 16

    moved = affine(images, numbers)

    assert torch.allclose(moved[..., :-1], images[..., 1:], atol=1e-5)


def test_draws_depend_on_seed_and_epoch_only() -> None:
    first = draw_affine(1, 1, 100, task=TASK)

    assert np.array_equal(first, draw_affine(1, 1, 100, task=TASK))
    assert not np.array_equal(first, draw_affine(1, 2, 100, task=TASK))
    assert not np.array_equal(first, draw_affine(2, 1, 100, task=TASK))


def test_draws_span_the_limits_of_the_task() -> None:
    cos, _, right, sin, _, down = draw_affine(3, 1, 5_000, task=TASK).T

    scale, angle = np.hypot(cos, sin), np.degrees(np.arctan2(sin, cos))
    assert 0.9 <= scale.min() < 0.905
    assert 1.095 < scale.max() <= 1.1 + 1e-6
    assert 9.9 < np.abs(angle).max() <= 10 + 1e-4
    limit = 2 * TASK.training.shift
    assert 0.99 * limit < max(np.abs(right).max(), np.abs(down).max()) <= limit + 1e-6


def test_without_augmentation_draws_are_the_identity() -> None:
    training = dataclasses.replace(TASK.training, rotation_degrees=0.0, scale=0.0, shift=0.0)
    still = dataclasses.replace(TASK, training=training)

    numbers = draw_affine(1, 1, 3, task=still)

    assert np.allclose(numbers, IDENTITY.numpy())
