"""Samples of different lengths: a model leaves padding out, and the loss is MLPerf's two means."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hybridperf.run.evaluation import Evaluation
from hybridperf.tasks.data.pairs import NOT_PREDICTED, PADDING
from hybridperf_reference.bert.objective import SegmentPairs
from hybridperf_reference.models import chain_of
from tests.bert.test_pairs import MASKED, MODEL, TOKENS, VOCABULARY
from tests.families import run, task_of

if TYPE_CHECKING:
    from hybridperf_reference.engine.chain import Chain

LENGTHS = (TOKENS, 5, 9, 12)


def _chain(*, filled: bool, **numbers: object) -> Chain:
    task = task_of("bert/laptop", MODEL | numbers, ("embeddings", "layers.0", "head"))
    return chain_of(
        dataclasses.replace(task, data=dataclasses.replace(task.data, filled=filled)), 0
    )


def _inputs() -> torch.Tensor:
    """Return samples [batch, token, 3] of different lengths, whose padding has words of its own."""
    numbers = np.random.default_rng(3)
    words = torch.from_numpy(numbers.integers(5, VOCABULARY, (len(LENGTHS), TOKENS)))
    places = torch.arange(TOKENS).expand(len(LENGTHS), -1)
    segments = (places > 3).long()
    for row, length in enumerate(LENGTHS):
        segments[row, length:] = PADDING
    return torch.stack([words, places, segments], dim=2)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_padded_sample_has_the_outputs_and_gradients_of_the_sample_alone(
    norm_first: bool,
) -> None:
    padded, alone = (_chain(filled=filled, norm_first=norm_first) for filled in (False, True))
    inputs = _inputs()

    outputs = _outputs(padded, inputs)
    expected = [
        _outputs(alone, inputs[row : row + 1, :length]) for row, length in enumerate(LENGTHS)
    ]

    for row, each in enumerate(expected):
        assert torch.allclose(outputs[row : row + 1], each, rtol=1e-4, atol=1e-5)
    (outputs**2).sum().backward()
    torch.stack([(each**2).sum() for each in expected]).sum().backward()
    for one, other in zip(padded.units, alone.units, strict=True):
        for (name, mine), theirs in zip(
            one.module.named_parameters(), other.module.parameters(), strict=True
        ):
            assert mine.grad is not None, name
            assert theirs.grad is not None, name
            scale = max(1.0, theirs.grad.norm().item())
            assert (mine.grad[: len(theirs.grad)] - theirs.grad).norm() < 1e-4 * scale, name


def _outputs(chain: Chain, inputs: torch.Tensor) -> torch.Tensor:
    outputs = inputs
    for unit in chain.units:
        outputs = unit.module.eval()(outputs)
    return outputs


def test_padding_has_no_influence_and_hidden_states_of_zeros() -> None:
    chain, inputs = _chain(filled=False), _inputs()
    other = inputs.clone()
    other[:, :, 0] = torch.where(inputs[:, :, 2] == PADDING, 7, inputs[:, :, 0])
    hidden = inputs
    for unit in chain.units[:-1]:
        hidden = unit.module.eval()(hidden)

    assert torch.equal(run(chain, inputs), run(chain, other))
    assert torch.equal((hidden == 0).all(dim=2), inputs[:, :, 2] == PADDING)


def test_no_work_is_done_on_padding() -> None:
    chain, seen = _chain(filled=False), list[int]()
    for module in chain.units[1].module.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _module, inputs, _: seen.append(inputs[0].shape[1]))

    run(chain, _inputs())

    assert set(seen) == {sum(LENGTHS)}
    assert len(seen) == 6


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs() -> None:
    objective = SegmentPairs(filled=False)
    outputs = torch.randn(3, 1 + MASKED, VOCABULARY, dtype=torch.float64)
    none = NOT_PREDICTED
    targets = torch.tensor([[0, 7, 9], [1, 8, none], [1, 6, none]])

    means = (objective.loss(outputs, targets) / torch.as_tensor(objective.count(targets))).sum()

    places = [(0, 1, 7), (0, 2, 9), (1, 1, 8), (2, 1, 6)]
    words = [torch.log_softmax(outputs[row, place], 0)[word] for row, place, word in places]
    pairs = [torch.log_softmax(outputs[n, 0, :2], 0)[int(targets[n, 0])] for n in range(3)]
    assert means.item() == pytest.approx(
        -(torch.stack(words).mean() + torch.stack(pairs).mean()).item()
    )


def test_only_tokens_to_predict_count_in_the_quality() -> None:
    labels = np.array([[7, 9], [8, NOT_PREDICTED]])
    evaluation = Evaluation(labels, None)

    evaluation.begin()
    predictions = np.array([[7, 1], [8, NOT_PREDICTED]]).tobytes()
    assert evaluation.take([(0, 2)], memoryview(predictions)) == ""

    assert evaluation.quality() == 2 / 3
