"""Samples are handed out once: whatever the ranks, the counts and the last batch."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from suite.runs.access import EvaluationData, TrainingData
from suite.tasks.data import Samples
from suite.tasks.registry import find_task
from suite.tasks.task import Block

TASK = find_task("resnet/laptop")
REPLICAS = (1, 2, 3, 4, 8)


def _samples(count: int) -> Samples:
    return Samples(np.arange(count), np.arange(count))


def _training(count: int, batch: int, block: Block, seed: int = 5) -> TrainingData:
    task = dataclasses.replace(
        TASK,
        data=dataclasses.replace(TASK.data, train_samples=count),
        training=dataclasses.replace(TASK.training, global_batch_size=batch),
    )
    return TrainingData(_samples(count), task, seed, block, lambda: None)


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("count", [24, 25, 47, 97, 1195])
@pytest.mark.parametrize("share", [1, 3])
def test_replicas_together_train_on_each_sample_at_most_once_an_epoch(
    replicas: int, count: int, share: int
) -> None:
    batch = replicas * share
    data = _training(count, batch, Block(2, 3))

    seen: dict[int, Counter[int]] = {2: Counter(), 3: Counter(), 4: Counter()}
    for each in data.batches():
        assert len(each.indices) == batch
        for replica in range(replicas):
            own = each.indices[replica * share : (replica + 1) * share]
            seen[each.epoch].update(own.tolist())

    for counts in seen.values():
        assert set(counts.values()) == {1}
        # Only the last, partial batch is left out: of a whole number of batches, nothing.
        assert len(counts) == count - count % batch


@pytest.mark.parametrize("count", [25, 47])
def test_what_one_epoch_leaves_out_another_trains_on(count: int) -> None:
    data = _training(count, 24, Block(1, 12))

    seen = {index for each in data.batches() for index in each.indices.tolist()}

    assert seen == set(range(count))


def test_the_order_is_that_of_seed_and_epoch_however_blocks_are_cut() -> None:
    whole = [(b.epoch, b.step, b.indices.tolist()) for b in _training(50, 8, Block(1, 4)).batches()]
    parts = [
        (b.epoch, b.step, b.indices.tolist())
        for block in (Block(1, 1), Block(2, 3))
        for b in _training(50, 8, block).batches()
    ]

    assert whole == parts
    assert [step for _, step, _ in whole] == list(range(24))
    other = next(_training(50, 8, Block(1, 1), seed=6).batches())
    assert other.indices.tolist() != whole[0][2]


@pytest.mark.parametrize("replicas", REPLICAS)
@pytest.mark.parametrize("count", [1, 2, 5, 7, 8, 63, 65, 602])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_replicas_together_evaluate_each_sample_exactly_once(
    replicas: int, count: int, size: int
) -> None:
    data = EvaluationData(_samples(count), lambda: None)

    covered = [
        index
        for replica in range(replicas)
        for chunk in data.chunks(replica, replicas, size)
        for index in data.samples.inputs[chunk].tolist()
    ]

    assert covered == list(range(count))


def test_every_batch_and_chunk_is_a_sign_of_progress() -> None:
    signs: list[None] = []
    training = dataclasses.replace(
        _training(50, 8, Block(1, 2)), on_batch=lambda: signs.append(None)
    )

    assert len(list(training.batches())) == len(signs) == 12
    evaluation = EvaluationData(_samples(10), lambda: signs.append(None))
    assert len(list(evaluation.chunks(1, 2, 2))) == 3
    assert len(signs) == 15
