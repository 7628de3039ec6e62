from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.tasks.data import Samples
from hybridperf.tasks.data.pictures import EncodedImage
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.input import Input, ReadingRole
from hybridperf_reference.engine.timing import StepTimer

pytest.importorskip("torchvision")
pytest.importorskip("PIL.Image")

from hybridperf_reference.images.objective import EncodedImages
from tests.images.jpegs import Rows, encoded, encoded_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASK = find_task("resnet50/cluster")


def samples() -> Samples:
    generator = np.random.default_rng(0)
    sizes, modes = [(300, 260), (40, 90), (256, 256), (500, 30)], ["RGB", "L", "CMYK", "RGB"]
    rows = Rows(
        encoded(generator.integers(0, 256, (*size, 3), dtype=np.uint8), mode)
        for size, mode in zip(sizes, modes, strict=True)
    )
    return Samples(rows, np.array([3, 1, 4, 1], dtype=np.int64))


def test_images_of_any_size_and_mode_become_inputs_of_one_shape() -> None:
    objective, some = EncodedImages(TASK, 64), samples()

    which = some, np.array([2, 0, 1, 3]), 1, 1
    stored = objective.read(*which)
    inputs, labels = objective.prepare(*stored), objective.targets(*which)

    assert stored[0].shape == (4, 3, 64, 64)
    assert stored[0].dtype == torch.uint8
    assert inputs.shape == (4, 3, 64, 64)
    assert labels.tolist() == [4, 3, 1, 1]
    assert objective.evaluation(some.inputs[:3]).shape == (3, 3, 64, 64)


def test_the_crop_of_a_sample_depends_on_seed_epoch_and_sample_only() -> None:
    objective, some = EncodedImages(TASK, 64), samples()

    (together,) = objective.read(some, np.array([0, 1, 2]), 1, 1)
    torch.manual_seed(123)
    (alone,) = objective.read(some, np.array([2]), 1, 1)
    drawn = torch.rand(1)

    assert torch.equal(together[2:], alone)
    for seed, epoch in ((1, 2), (2, 1)):
        (other,) = objective.read(some, np.array([2]), seed, epoch)
        assert not torch.equal(alone, other)
    torch.manual_seed(123)
    assert torch.equal(torch.rand(1), drawn), "the process's own numbers are left alone"


def test_evaluation_crops_the_center() -> None:
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


def test_neither_training_nor_evaluation_decodes_in_the_process_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is decoded here raises; workers, which are other processes, decode as ever."""
    own, pixels = os.getpid(), EncodedImage.pixels

    def elsewhere(image: EncodedImage) -> NDArray[np.uint8]:
        assert os.getpid() != own, "decoded on the clock, where the model is computed"
        return pixels(image)

    monkeypatch.setattr(EncodedImage, "pixels", elsewhere)
    objective, some, device = EncodedImages(TASK, 32), encoded_samples(20), torch.device("cpu")
    data = dataclasses.replace(TASK.data, train_samples=20)
    training = dataclasses.replace(TASK.training, global_batch_size=10)
    task = dataclasses.replace(TASK, data=data, training=training)
    batches = TrainingData(some, task, 5, Block(1, 2), lambda: None)
    held_out = EvaluationData(some.inputs, lambda: None)

    with (
        contextlib.closing(Input(objective, device, ReadingRole())) as source,
        torch.inference_mode(),  # as in the predictor
    ):
        trained = list(source.train(batches, slice(0, 10), StepTimer(device)))
        evaluated = list(source.evaluate(some.inputs, held_out.chunks(0, 1, 8)))

    assert len(trained) == 4
    monkeypatch.undo()
    for chunk, inputs in evaluated:
        assert inputs is not None
        assert torch.equal(inputs, objective.evaluation(some.inputs[chunk]))
