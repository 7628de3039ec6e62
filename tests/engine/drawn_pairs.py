"""Pairs of segments for a BERT with sentences, drawn from a text that says nothing."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.tasks.data import Samples, Splits
from hybridperf.tasks.data.pairs import TextBlocks
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import Text
from hybridperf_reference.bert.chain import BertShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Task

TOKENS = 8000  # of the text
SPECIAL = (0, 1, 2, 3, 4)


def drawn_pairs(task: Task) -> Splits:
    """Return the samples of ``task``, drawn as prepared text is."""
    shape = build(BertShape, task.model, path=task.name, at="model")
    path, text = _tokens(shape.vocabulary), Text(shape.tokens, shape.masked, shape.vocabulary, "")
    ends = None if task.data.filled else _ends()
    train, evaluation = (
        TextBlocks(path, TOKENS, samples, text, SPECIAL, ends)
        for samples in (task.data.train_samples, task.data.eval_samples)
    )
    nothing = np.zeros((len(train), 0), dtype=np.int64)
    held_out = evaluation.held_out()
    return Splits(Samples(train, nothing), Samples(held_out.inputs, held_out.targets))


@functools.cache
def _tokens(vocabulary: int) -> Path:
    """Return a file of tokens that lies in memory, and goes with this process."""
    numbers = np.random.default_rng(0).integers(len(SPECIAL), vocabulary, TOKENS)
    return _in_memory(numbers.astype("<u2"))


@functools.cache
def _ends() -> Path:
    """Return a file of the ends of pieces, some of which are longer than a sample."""
    stops = np.cumsum(np.random.default_rng(1).integers(1, 24, TOKENS))
    return _in_memory(stops[stops <= TOKENS].astype("<u8"))


def _in_memory(numbers: NDArray[Any]) -> Path:
    descriptor = os.memfd_create("numbers")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(numbers.tobytes())
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")
