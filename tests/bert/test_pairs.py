from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hybridperf.tasks.data import Samples
from hybridperf.tasks.data.pairs import TextBlocks
from hybridperf.tasks.task import Text
from hybridperf_reference.bert.objective import SegmentPairs
from hybridperf_reference.models import chain_of
from tests.families import run, task_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TOKENS, MASKED, SAMPLES, VOCABULARY = 16, 2, 60, 300
MODEL: dict[str, object] = {
    "vocabulary": VOCABULARY,
    "tokens": TOKENS,
    "masked": MASKED,
    "hidden": 16,
    "layers": 1,
    "heads": 2,
    "inner": 32,
    "dropout": 0.0,
    "sentences": True,
    "norm_first": False,
    "initial_std": 0.3,
    "embedding_std": 0.3,
}
OBJECTIVE = SegmentPairs()


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    path = tmp_path / "tokens.u16"
    numbers = np.random.default_rng(0).integers(5, VOCABULARY, 2000).astype("<u2")
    path.write_bytes(numbers.tobytes())
    blocks = TextBlocks(path, 2000, SAMPLES, Text(TOKENS, MASKED, VOCABULARY, ""), (0, 1, 2, 3, 4))
    return Samples(blocks, np.zeros((SAMPLES, 0), dtype=np.int64))


def _read(
    samples: Samples, indices: NDArray[np.int64], epoch: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    which = samples, indices, 1, epoch
    return OBJECTIVE.prepare(*OBJECTIVE.read(*which)), OBJECTIVE.targets(*which)


def test_targets_are_the_relation_followed_by_the_masked_tokens(samples: Samples) -> None:
    indices = np.array([7, 3, 50])

    inputs, targets = _read(samples, indices)

    drawn = samples.inputs.draw(indices, 1, 1)
    assert torch.equal(inputs, torch.from_numpy(drawn.inputs.astype(np.int64)))
    assert targets[:, 0].tolist() == drawn.relations.tolist()
    assert targets[:, 1:].tolist() == drawn.targets.tolist()
    example = chain_of(task_of("bert/laptop", MODEL, ("embeddings", "layers.0", "head")), 0).example
    for part, synthetic in zip((inputs, targets), example(3), strict=True):
        assert (part.shape, part.dtype) == (synthetic.shape, synthetic.dtype)


def test_the_loss_adds_masked_token_and_next_sentence_losses(samples: Samples) -> None:
    _, targets = _read(samples, np.arange(8))
    outputs = torch.randn(8, 1 + MASKED, VOCABULARY)

    words = [
        torch.log_softmax(outputs[n, 1 + k], 0)[targets[n, 1 + k]]
        for n in range(8)
        for k in range(MASKED)
    ]
    relations = [torch.log_softmax(outputs[n, 0, :2], 0)[targets[n, 0]] for n in range(8)]

    expected = -torch.stack(words).mean() - torch.stack(relations).mean()
    counts = torch.as_tensor(OBJECTIVE.count(targets))
    assert counts.tolist() == [8, 8 * MASKED]
    assert torch.allclose((OBJECTIVE.loss(outputs, targets) / counts).sum(), expected)
    parts = [OBJECTIVE.loss(outputs[n : n + 2], targets[n : n + 2]) for n in range(0, 8, 2)]
    assert torch.allclose((torch.stack(parts).sum(0) / counts).sum(), expected)


def test_predictions_exclude_the_next_sentence_row(samples: Samples) -> None:
    chain = chain_of(task_of("bert/laptop", MODEL, ("embeddings", "layers.0", "head")), 0)
    held_out = samples.inputs.held_out()

    outputs = run(chain, chain.objective.evaluation(held_out.inputs[:5]))

    predicted = chain.objective.predictions(outputs)
    assert predicted.shape == held_out.targets[:5].shape
    assert torch.equal(predicted, outputs[:, 1:].argmax(dim=-1))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_sample_is_read_once_and_alike_however_many_read(
    samples: Samples, ranks: int
) -> None:
    order = np.random.default_rng(5).permutation(SAMPLES)
    whole, _ = _read(samples, np.arange(SAMPLES), epoch=2)
    seen = []

    for batch in np.split(order, 5):
        for rank, own in enumerate(np.split(batch, ranks)):
            inputs, _ = _read(samples, own, epoch=2)
            assert torch.equal(inputs, whole[own]), rank
            seen += own.tolist()

    assert sorted(seen) == list(range(SAMPLES))
