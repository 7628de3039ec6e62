from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.tasks.data.pairs import (
    NOT_PREDICTED,
    PADDING,
    TextBlocks,
    chunks,
    key_of,
    uniforms,
)
from hybridperf.tasks.data.texts import minimum_tokens
from hybridperf.tasks.task import Text

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hybridperf.tasks.data.pairs import Pairs

TOKENS, MASKED, SAMPLES, VOCABULARY = 64, 9, 500, 60_000
WINDOW = TOKENS - 3
SPECIAL = PAD, UNKNOWN, FIRST, SEPARATOR, MASK = (0, 100, 101, 102, 103)
FORM = Text(TOKENS, MASKED, VOCABULARY, "")
COUNT = 40_000
STREAM = np.arange(1000, 1000 + COUNT)  # each token tells where it stands
EVERY = np.arange(SAMPLES)


@pytest.fixture
def blocks(tmp_path: Path) -> TextBlocks:
    path = tmp_path / "tokens.u16"
    path.write_bytes(STREAM.astype("<u2").tobytes())
    return TextBlocks(path, COUNT, SAMPLES, FORM, SPECIAL)


def _whole(pairs: Pairs) -> NDArray[np.int64]:
    """Return what stood at each place before anything was masked."""
    words = pairs.inputs[:, :, 0].astype(np.int64)
    words[:, 1 : 1 + MASKED] = pairs.targets
    placed = np.empty_like(words)
    np.put_along_axis(placed, pairs.inputs[:, :, 1].astype(np.int64), words, axis=1)
    return placed


def test_a_sample_has_two_segments_between_special_tokens(blocks: TextBlocks) -> None:
    pairs = blocks.draw(EVERY, seed=1, epoch=1)

    assert pairs.inputs.shape == (SAMPLES, TOKENS, 3)
    stride = (COUNT - WINDOW) // SAMPLES
    follows = 0
    for number, words in enumerate(_whole(pairs)):
        middle, end = np.flatnonzero(words == SEPARATOR)
        assert words[0] == FIRST
        assert end == TOKENS - 1
        one, other = words[1:middle] - 1000, words[middle + 1 : end] - 1000
        assert WINDOW // 4 <= len(one) <= WINDOW - WINDOW // 4
        assert (np.diff(one) == 1).all()
        assert (np.diff(other) == 1).all()
        assert number * stride <= one[0] < (number + 1) * stride
        assert (other[0] == one[-1] + 1) == (pairs.relations[number] == 0)
        places, segments = pairs.inputs[number, :, 1], pairs.inputs[number, :, 2]
        assert sorted(places) == list(range(TOKENS))
        assert (segments == (places > middle)).all()
        follows += pairs.relations[number] == 0
    assert 0.4 < follows / SAMPLES < 0.6


def test_the_class_token_precedes_the_masked_tokens_in_order_of_position(
    blocks: TextBlocks,
) -> None:
    places = blocks.draw(EVERY, seed=1, epoch=1).inputs[:, :, 1].astype(np.int64)

    assert (places[:, 0] == 0).all()
    assert (np.diff(places[:, 1 : 1 + MASKED]) > 0).all()
    counts = np.bincount(places[:, 1 : 1 + MASKED].ravel(), minlength=TOKENS)
    assert counts[0] == counts[-1] == 0
    assert counts[1:-1].min() > 0.5 * counts.mean()


def test_of_tokens_to_predict_80_percent_are_masked_and_10_replaced(
    blocks: TextBlocks,
) -> None:
    pairs = blocks.draw(EVERY, seed=1, epoch=1)
    shown, targets = pairs.inputs[:, 1 : 1 + MASKED, 0].astype(np.int64), pairs.targets

    assert not np.isin(targets, SPECIAL).any()
    assert 0.78 < (shown == MASK).mean() < 0.82
    assert 0.085 < (shown == targets).mean() < 0.115
    replaced = shown[(shown != MASK) & (shown != targets)]
    assert 0.085 < replaced.size / shown.size < 0.115
    assert np.abs(replaced.mean() / VOCABULARY - 0.5) < 0.06


def test_special_tokens_are_predicted_only_if_there_are_no_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens.u16"
    numbers = np.where(np.arange(COUNT) % 5, UNKNOWN, STREAM)
    path.write_bytes(numbers.astype("<u2").tobytes())
    blocks = TextBlocks(path, COUNT, SAMPLES, FORM, SPECIAL)

    some, most = blocks, dataclasses.replace(blocks, text=dataclasses.replace(FORM, masked=20))

    assert not np.isin(some.draw(EVERY, 1, 1).targets, SPECIAL).any()
    targets = most.draw(EVERY, 1, 1).targets
    assert (np.isin(targets, SPECIAL).sum(axis=1) <= 9).all()
    assert not np.isin(targets, [FIRST]).any()


def test_a_sample_does_not_depend_on_its_batch_or_process(blocks: TextBlocks) -> None:
    order = np.random.default_rng(0).permutation(SAMPLES)
    whole = blocks.draw(order, 3, 2)
    other: TextBlocks = pickle.loads(pickle.dumps(blocks))

    for first in range(0, SAMPLES, 70):
        part = other.draw(order[first : first + 70], 3, 2)
        assert np.array_equal(part.inputs, whole.inputs[first : first + 70])
        assert np.array_equal(part.targets, whole.targets[first : first + 70])
        assert np.array_equal(part.relations, whole.relations[first : first + 70])


def test_seeds_and_epochs_have_different_windows(blocks: TextBlocks) -> None:
    first = _whole(blocks.draw(EVERY, 3, 2))

    for seed, epoch in ((3, 3), (4, 2), (2, 3)):
        other = _whole(blocks.draw(EVERY, seed, epoch))
        assert (first[:, 1] == other[:, 1]).mean() < 0.05


def test_evaluation_samples_are_fixed_and_do_not_overlap(blocks: TextBlocks) -> None:
    pairs = blocks.held_out()

    assert np.array_equal(pairs.inputs, blocks.held_out().inputs)
    assert pairs.targets.shape == (SAMPLES, MASKED)
    words = _whole(pairs)
    assert (words[:, 1] - 1000 == EVERY * ((COUNT - WINDOW) // SAMPLES)).all()
    own = [row[1:-1][row[1:-1] != SEPARATOR] for row in words[pairs.relations == 0]]
    assert len(np.unique(np.concatenate(own))) == WINDOW * len(own)


def test_least_tokens_suffice_for_all_samples(blocks: TextBlocks) -> None:
    least = dataclasses.replace(blocks, samples=30, count=minimum_tokens(FORM, 30))

    assert least.count < COUNT
    for pairs in (least.draw(np.arange(30), 1, 1), least.held_out()):
        assert _whole(pairs).max() < 1000 + least.count


#: the first outputs of SplitMix64 from state 0, as published with it
SPLITMIX64 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)


def test_uniforms_are_those_of_splitmix64() -> None:
    expected = [(number >> 11) * 2.0**-53 for number in SPLITMIX64]

    assert uniforms(0, np.array([0]), 4).tolist() == [expected]
    assert uniforms(0, np.array([1, 0]), 2).tolist() == [expected[2:], expected[:2]]


def test_uniforms_are_evenly_distributed_in_every_draw_and_sample() -> None:
    numbers = uniforms(key_of(5, 7), np.arange(4000), 50)

    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(numbers.mean(axis=0) - 0.5).max() < 0.025
    assert np.abs(numbers.mean(axis=1) - 0.5).max() < 0.21
    assert np.abs(np.histogram(numbers, 16)[0] / numbers.size * 16 - 1).max() < 0.04
    assert np.abs(np.corrcoef(numbers[:, :10].T) - np.eye(10)).max() < 0.08


def test_seeds_and_epochs_have_different_keys() -> None:
    keys = {key_of(seed, epoch, 1) for seed in range(30) for epoch in range(30)}

    assert len(keys) == 900


@pytest.fixture
def unfilled(blocks: TextBlocks) -> TextBlocks:
    """Return blocks whose samples are pieces of one token to three times a sample."""
    sizes = np.random.default_rng(2).integers(1, 3 * WINDOW, COUNT)
    path = blocks.path.with_name("ends.u64")
    stops = np.cumsum(sizes)
    path.write_bytes(stops[stops <= COUNT].astype("<u8").tobytes())
    return dataclasses.replace(blocks, ends=path)


def test_unfilled_samples_are_pieces_of_the_text_with_padding_last(unfilled: TextBlocks) -> None:
    assert unfilled.ends is not None
    stops = np.fromfile(unfilled.ends, "<u8").astype(int).tolist()
    expected = {
        (start, min(WINDOW, stop - start))
        for begin, stop in zip([0, *stops], stops, strict=False)
        for start in range(begin, stop, WINDOW)
        if stop - start > 1
    }

    pairs, lengths = unfilled.draw(EVERY, seed=1, epoch=1), unfilled.lengths(EVERY, 1, 1)

    seen = set()
    for number, (row, length) in enumerate(zip(pairs.inputs, lengths, strict=True)):
        places, segments = row[:, 1], row[:, 2]
        assert sorted(places) == list(range(TOKENS))
        assert (segments[length:] == PADDING).all()
        assert (segments[:length] < PADDING).all()
        assert (row[length:, 0] == PAD).all()
        words = np.empty(TOKENS, dtype=np.int64)
        words[places] = np.where(np.arange(TOKENS) < length, row[:, 0], PAD)
        predicted = pairs.targets[number] != NOT_PREDICTED
        words[places[1 : 1 + MASKED][predicted]] = pairs.targets[number][predicted]
        middle, end = np.flatnonzero(words == SEPARATOR)
        assert (words[0], end) == (FIRST, length - 1)
        one, other = words[1:middle] - 1000, words[middle + 1 : end] - 1000
        assert len(one) >= 1 <= len(other)
        assert (np.diff(one) == 1).all()
        assert (np.diff(other) == 1).all()
        assert (other[0] == one[-1] + 1) == (pairs.relations[number] == 0)
        seen.add((int(one[0]), int(length - 3)))
    assert seen <= expected
    assert len(seen) == SAMPLES, "no piece is read twice in an epoch"


def test_15_percent_of_an_unfilled_sample_is_predicted_and_at_least_one_token(
    unfilled: TextBlocks,
) -> None:
    pairs, lengths = unfilled.draw(EVERY, seed=1, epoch=1), unfilled.lengths(EVERY, 1, 1)

    predicted = pairs.targets != NOT_PREDICTED
    counts = np.clip(np.rint(0.15 * (lengths - 3)), 1, MASKED)
    assert predicted.sum(axis=1).tolist() == counts.tolist()
    assert (np.diff(predicted.astype(int), axis=1) <= 0).all(), "they come first"
    assert not np.isin(pairs.targets[predicted], SPECIAL).any()
    shown = pairs.inputs[:, 1 : 1 + MASKED, 0]
    assert 0.75 < (shown[predicted] == MASK).mean() < 0.85
    assert not (shown[~predicted] == MASK).any()


def test_an_epoch_of_as_many_samples_as_pieces_reads_each_piece_once(unfilled: TextBlocks) -> None:
    assert unfilled.ends is not None
    starts, lengths = chunks(unfilled.ends, WINDOW)
    every = dataclasses.replace(unfilled, samples=len(starts))

    read = every.lengths(np.arange(len(starts)), seed=5, epoch=3)

    assert read.tolist() == (lengths + 3).tolist()
    assert len(set(starts.tolist())) == len(starts)
