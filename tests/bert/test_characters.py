from __future__ import annotations

import numpy as np
import torch

from hybridperf.tasks.data import Samples
from hybridperf.tasks.data.topics import CHARACTERS, MASK
from hybridperf_reference.bert.objective import MaskedCharacters

TOKENS, MASKED, LENGTH = 32, 5, 256
BLOCKS = np.random.default_rng(0).integers(1, CHARACTERS, (400, LENGTH)).astype(np.uint8)
SAMPLES = Samples(BLOCKS, np.zeros((400, 0), dtype=np.int64))
EVERY = np.arange(400)


def _read(seed: int = 1, epoch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    objective = MaskedCharacters(TOKENS, MASKED)
    which = SAMPLES, EVERY, seed, epoch
    return objective.prepare(*objective.read(*which)), objective.targets(*which)


def test_a_sample_is_a_window_of_its_block_with_tokens_to_predict_first() -> None:
    inputs, targets = _read()

    assert inputs.shape == (400, TOKENS, 3)
    assert targets.shape == (400, MASKED)
    for block, tokens, answers in zip(BLOCKS, inputs.tolist(), targets.tolist(), strict=True):
        assert sorted(place for _, place, _ in tokens) == list(range(TOKENS))
        window = [0] * TOKENS
        for number, (character, place, _) in enumerate(tokens):
            window[place] = answers[number] if number < MASKED else character
        starts = range(LENGTH - TOKENS + 1)
        assert any(window == block[start : start + TOKENS].tolist() for start in starts)


def test_of_characters_to_predict_80_percent_are_masked_and_10_replaced() -> None:
    inputs, targets = _read()
    shown = inputs[:, :MASKED, 0]

    assert 0.75 < (shown == MASK).double().mean().item() < 0.85
    assert 0.07 < (shown == targets).double().mean().item() < 0.14
    assert (inputs[:, MASKED:, 0] != MASK).all()


def test_epochs_and_seeds_have_different_windows() -> None:
    first = _read()

    for other in (_read(epoch=2), _read(seed=2)):
        assert not torch.equal(first[0], other[0])
        same = (first[1] == other[1]).all(dim=1).double().mean().item()
        assert same < 0.05


def test_evaluation_puts_masked_positions_first_in_order() -> None:
    windows = BLOCKS[:3, :TOKENS].copy()
    places = np.array([[0, 7, 9, 20, 31], [1, 2, 3, 4, 5], [6, 12, 18, 24, 30]])
    np.put_along_axis(windows, places, MASK, axis=1)

    inputs = MaskedCharacters(TOKENS, MASKED).evaluation(windows)

    assert inputs[:, :MASKED, 1].tolist() == places.tolist()
    assert not inputs[:, :MASKED, 0].any()
    for window, tokens in zip(windows, inputs[:, MASKED:].tolist(), strict=True):
        assert all(window[place] == character for character, place, _ in tokens)


def test_loss_and_predictions_cover_every_masked_character() -> None:
    objective = MaskedCharacters(TOKENS, MASKED)
    outputs, targets = torch.randn(4, MASKED, CHARACTERS), torch.randint(CHARACTERS, (4, MASKED))

    rows = [torch.log_softmax(outputs[n, k], 0)[targets[n, k]] for n in range(4) for k in range(5)]

    assert torch.allclose(objective.loss(outputs, targets), -torch.stack(rows).sum())
    assert objective.count(targets) == 4 * MASKED
    assert torch.equal(objective.predictions(outputs), outputs.argmax(dim=-1))
