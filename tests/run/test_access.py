"""Samples are handed out once: whatever the ranks, the counts and the last batch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.tasks.data import Samples
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block

ROOT = Path(__file__).parents[2]
TASK = find_task("resnet/laptop")


def _samples(count: int) -> Samples:
    return Samples(np.arange(count), np.arange(count))


def _training(count: int, batch: int, block: Block, seed: int = 5) -> TrainingData:
    task = dataclasses.replace(
        TASK,
        data=dataclasses.replace(TASK.data, train_samples=count),
        training=dataclasses.replace(TASK.training, global_batch_size=batch),
    )
    return TrainingData(_samples(count), task, seed, block, lambda: None)


@given(replicas=st.integers(1, 8), share=st.integers(1, 3), count=st.integers(24, 200))
@example(replicas=8, share=3, count=24)
@example(replicas=8, share=3, count=1195)
def test_replicas_together_train_on_each_sample_exactly_once_an_epoch(
    replicas: int, count: int, share: int
) -> None:
    batch = replicas * share
    blocks = (Block(1, 1), Block(2, 2), Block(4, 1))

    seen: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for each in chain.from_iterable(_training(count, batch, block).batches() for block in blocks):
        assert len(each.indices) == len(each.epochs) == batch
        for replica in range(replicas):
            own = slice(replica * share, (replica + 1) * share)
            for index, epoch in zip(each.indices[own], each.epochs[own], strict=True):
                seen[int(epoch)][int(index)] += 1

    for epoch in (1, 2, 3):
        assert seen[epoch] == dict.fromkeys(range(count), 1)
    # What is less than a batch of the last epoch would be the beginning of the next one.
    assert seen[4].total() == len(seen[4]) == count - 4 * count % batch
    assert set(seen) <= {1, 2, 3, 4}


def test_the_first_batch_imports_nothing() -> None:
    program = """
import sys, numpy.random
from tests.run.test_access import Block, _training
before = set(sys.modules)
assert len(list(_training(24, 16, Block(1, 2)).batches())) == 3
print(sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"  # the clock runs


def test_a_batch_of_all_samples_but_one_runs_through_two_epochs() -> None:
    first, second = list(_training(24, 23, Block(1, 2)).batches())

    assert first.epochs.tolist() == [1] * 23
    assert second.epochs.tolist() == [1] + [2] * 22
    assert {*first.indices.tolist(), int(second.indices[0])} == set(range(24))


def test_the_order_is_that_of_seed_and_epoch_however_blocks_are_cut() -> None:
    whole = [
        (b.epochs.tolist(), b.step, b.indices.tolist())
        for b in _training(50, 8, Block(1, 4)).batches()
    ]
    parts = [
        (b.epochs.tolist(), b.step, b.indices.tolist())
        for block in (Block(1, 1), Block(2, 3))
        for b in _training(50, 8, block).batches()
    ]

    assert whole == parts
    assert [step for _, step, _ in whole] == list(range(25))
    other = next(_training(50, 8, Block(1, 1), seed=6).batches())
    assert other.indices.tolist() != whole[0][2]


@given(replicas=st.integers(1, 8), count=st.integers(1, 602), size=st.integers(1, 64))
@example(replicas=8, count=1, size=64)
@example(replicas=3, count=602, size=1)
def test_replicas_together_evaluate_each_sample_exactly_once(
    replicas: int, count: int, size: int
) -> None:
    data = EvaluationData(np.arange(count), lambda: None)

    covered = [
        index
        for replica in range(replicas)
        for chunk in data.chunks(replica, replicas, size)
        for index in data.inputs[chunk].tolist()
    ]

    assert covered == list(range(count))


def test_every_batch_and_chunk_is_a_sign_of_progress() -> None:
    signs: list[None] = []
    training = dataclasses.replace(
        _training(50, 8, Block(1, 2)), on_batch=lambda: signs.append(None)
    )

    assert len(list(training.batches())) == len(signs) == 12
    evaluation = EvaluationData(np.arange(10), lambda: signs.append(None))
    assert len(list(evaluation.chunks(1, 2, 2))) == 3
    assert len(signs) == 15
