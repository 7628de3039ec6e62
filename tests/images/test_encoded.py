from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridperf.tasks.data import Samples
from hybridperf.tasks.data.pictures import EncodedImage
from hybridperf.tasks.registry import find_task

pytest.importorskip("torchvision")
pytest.importorskip("PIL.Image")

from hybridperf_reference.images.encoded import EncodedImages
from tests.images.jpegs import Rows, encoded

TASK = find_task("resnet50/cluster")


def samples() -> Samples:
    generator = np.random.default_rng(0)
    sizes, modes = [(300, 260), (40, 90), (256, 256), (500, 30)], ["RGB", "L", "CMYK", "RGB"]
    rows = Rows(
        encoded(generator.integers(0, 256, (*size, 3), dtype=np.uint8), mode)
        for size, mode in zip(sizes, modes, strict=True)
    )
    return Samples(rows, np.array([3, 1, 4, 1], dtype=np.int64))


def test_images_of_any_size_and_kind_become_inputs_of_one_shape() -> None:
    objective, some = EncodedImages(TASK, 64), samples()

    stored = objective.read(some, np.array([2, 0, 1, 3]), 1, 1)
    inputs, labels = objective.prepare(*stored)

    assert stored[0].shape == (4, 3, 64, 64)
    assert stored[0].dtype == torch.uint8
    assert inputs.shape == (4, 3, 64, 64)
    assert labels.tolist() == [4, 3, 1, 1]
    assert objective.evaluation(some.inputs[:3]).shape == (3, 3, 64, 64)


def test_what_is_drawn_for_a_sample_depends_on_seed_epoch_and_sample_alone() -> None:
    objective, some = EncodedImages(TASK, 64), samples()

    together, _ = objective.read(some, np.array([0, 1, 2]), 1, 1)
    torch.manual_seed(123)
    alone, _ = objective.read(some, np.array([2]), 1, 1)
    drawn = torch.rand(1)

    assert torch.equal(together[2:], alone)
    for seed, epoch in ((1, 2), (2, 1)):
        other, _ = objective.read(some, np.array([2]), seed, epoch)
        assert not torch.equal(alone, other)
    torch.manual_seed(123)
    assert torch.equal(torch.rand(1), drawn), "the process's own numbers are left alone"


def test_evaluation_looks_at_the_middle() -> None:
    pixels = np.zeros((256, 256, 3), dtype=np.uint8)
    pixels[16:-16, 16:-16] = 200
    bordered = encoded(pixels, "RGB")

    inputs = EncodedImages(TASK, 224).evaluation([bordered])

    expected = (200 / 255 - TASK.data.channel_means[0]) / TASK.data.channel_stds[0]
    assert torch.allclose(inputs[0, 0, 8:-8, 8:-8], torch.tensor(expected), atol=0.05)


def test_an_image_that_cannot_be_decoded_is_named() -> None:
    broken = EncodedImage("/data/train/ape/1.jpg", samples().inputs[:1][0].content[:100])

    with pytest.raises(RuntimeError, match=r"/data/train/ape/1\.jpg: expected a JPEG or PNG"):
        EncodedImages(TASK, 64).evaluation([broken])
