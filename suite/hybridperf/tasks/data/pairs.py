"""Samples of BERT's pre-training: pairs of text segments with masked tokens.

The text of a split is one sequence of tokens, in the order of its files, cut into as many blocks of
equal size as there are samples. Each epoch takes one window from every block, at a random offset.
A sample has exactly ``tokens`` tokens without padding: class, segment A, separator, segment B,
separator.

* A has between a quarter and three quarters of the tokens and ends anywhere, also within a sentence
  (SEGMENT-PAIR of Liu et al. 2019).
* B follows A or, with probability one half, starts at a random position of the text.
* ``masked`` tokens are predicted; special tokens only if no other tokens are left. 80 % are
  masked, 10 % replaced by a random entry of the vocabulary and 10 % kept (Devlin et al. 2019).

A task may leave samples unfilled (``filled = false``). Each is then a piece of the text, such as a
paragraph on a line of its own, or a part of a piece that is longer than ``tokens`` allow, and keeps
its length: A and B divide it, or B is a random segment of as many tokens. Padding follows the last
separator. 15 % of a sample's tokens are predicted, at most ``masked``. Samples are in blocks of
equal numbers of pieces, each epoch takes one piece from every block.

Random numbers depend on a key and the sample's index (`uniforms`). In training the key is made from
seed and epoch; in evaluation it is constant, and windows start at the beginning of their blocks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hybridperf.tasks.task import Text

__all__ = ["NOT_PREDICTED", "PADDING", "Pairs", "TextBlocks", "chunks", "key_of", "uniforms"]

NOT_PREDICTED: Final = -1  #: target of a token that is not to be predicted
PADDING: Final = 2  #: segment of padding
_EVALUATION: Final = 0  #: seed of the key of evaluation samples
_MASK_SHARE, _REPLACE_SHARE = 0.8, 0.1
_PREDICTED_SHARE: Final = 0.15  #: of an unfilled sample
_SPECIAL_TOKENS: Final = 3  #: class token and two separators
_MOST_SAMPLES: Final = 1024  #: samples drawn at once, to bound memory


@dataclass(frozen=True, slots=True)
class Pairs:
    """Samples with their targets."""

    inputs: NDArray[np.uint16]
    #: [sample, tokens, 3]: id, position and segment of each token; the class token comes first,
    #: then the tokens to predict in the order of position, then the remaining tokens, then padding
    targets: NDArray[np.int64]
    #: [sample, masked]: original ids of the tokens to predict, then `NOT_PREDICTED`
    relations: NDArray[np.int64]  #: [sample]: 0 where B follows A, 1 where it does not


@dataclass(frozen=True, slots=True)
class TextBlocks:
    """The tokens of a split, divided into one block per sample and read when samples are drawn."""

    path: Path  #: file of tokens; reading processes map it into memory
    count: int  #: number of tokens
    samples: int
    text: Text
    special: tuple[int, ...]  #: ids of padding, unknown, class, separator and mask
    ends: Path | None = None  #: file of the ends of pieces, for unfilled samples; None: filled

    def __len__(self) -> int:
        return self.samples

    def draw(self, indices: NDArray[np.int64], seed: int, epoch: int) -> Pairs:
        """Draw the training samples of the blocks ``indices`` [sample] in ``epoch``, from 1."""
        return self._draw(indices, key_of(seed, epoch, 1), within=True)

    def lengths(self, indices: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the tokens of the training samples ``indices`` [sample], without padding."""
        (start,) = uniforms(key_of(seed, epoch, 1), indices, self._draws, first=1).T
        return self._windows(indices, start)[1] + _SPECIAL_TOKENS

    def held_out(self) -> Pairs:
        """Draw all evaluation samples, which are the same in every run."""
        key, every = key_of(_EVALUATION), np.arange(self.samples)
        parts = [
            self._draw(every[first : first + _MOST_SAMPLES], key, within=False)
            for first in range(0, self.samples, _MOST_SAMPLES)
        ]
        return Pairs(
            np.concatenate([part.inputs for part in parts]),
            np.concatenate([part.targets for part in parts]),
            np.concatenate([part.relations for part in parts]),
        )

    @property
    def _draws(self) -> int:
        """Return the number of random numbers of a sample."""
        return 4 + self.text.tokens + 2 * self.text.masked

    def _windows(
        self, indices: NDArray[np.int64], draws: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the text of each sample begins, and its tokens, both [sample]."""
        if self.ends is None:
            stride = (self.count - self.text.window) // self.samples
            starts = indices * stride + _below(stride, draws)
            return starts, np.full_like(starts, self.text.window)
        starts, lengths = chunks(self.ends, self.text.window)
        first, stop = (numbers * len(starts) // self.samples for numbers in (indices, indices + 1))
        chosen = first + _below(stop - first, draws)
        return starts[chosen], lengths[chosen]

    def _draw(self, indices: NDArray[np.int64], key: int, *, within: bool) -> Pairs:
        tokens, masked = self.text.tokens, self.text.masked
        drawn = uniforms(key, indices, self._draws)
        start, length, relation, elsewhere = drawn[:, :4].T
        starts, windows = self._windows(indices, start if within else np.zeros_like(start))
        quarters = windows // 4
        lengths = quarters + _below(windows - 2 * quarters + 1, length)
        lengths = np.clip(lengths, 1, windows - 1)  # of the shortest samples a quarter is nothing
        relations = (relation >= 0.5).astype(np.int64)
        others = _below(self.count - self.text.window, elsewhere)
        seconds = np.where(relations == 0, starts + lengths, others)
        words, segments = self._framed(starts, seconds, lengths, windows)

        order, predicted = self._order(words, segments, drawn[:, 4 : 4 + tokens], windows)
        targets = np.take_along_axis(words, order[:, 1 : 1 + masked], axis=1)
        kinds, entries = np.split(drawn[:, 4 + tokens :], 2, axis=1)
        shown = np.take_along_axis(words, order, axis=1)
        shown[:, 1 : 1 + masked] = np.select(
            [kinds < _MASK_SHARE, kinds < _MASK_SHARE + _REPLACE_SHARE],
            [np.int64(self.special[-1]), _below(self.text.vocabulary, entries)],
            targets,
        )
        shown[:, 1 : 1 + masked] = np.where(predicted, shown[:, 1 : 1 + masked], targets)
        targets = np.where(predicted, targets, NOT_PREDICTED)
        segments = np.take_along_axis(segments, order, axis=1)
        return Pairs(
            np.stack([shown, order, segments], axis=2).astype(np.uint16), targets, relations
        )

    def _framed(
        self,
        starts: NDArray[Any],
        seconds: NDArray[Any],
        lengths: NDArray[Any],
        windows: NDArray[Any],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and segments of all tokens in the order of position, both [sample, tokens]."""
        padding, _, first, separator, _ = self.special
        places = np.arange(self.text.tokens)
        ends = lengths[:, None] + 1  # positions of the separators in the middle
        lasts = windows[:, None] + _SPECIAL_TOKENS - 1  # of the separators at the end
        follows = places > ends
        sources = np.where(follows, seconds[:, None] - ends, starts[:, None]) + places - 1
        stored = np.memmap(self.path, dtype="<u2", mode="r", shape=(self.count,))
        words = stored[np.clip(sources, 0, self.count - 1)].astype(np.int64)
        words[:, 0] = first
        words[(places == ends) | (places == lasts)] = separator
        words[places > lasts] = padding
        return words, np.where(places > lasts, PADDING, follows.astype(np.int64))

    def _order(
        self,
        words: NDArray[np.int64],
        segments: NDArray[np.int64],
        keys: NDArray[np.float64],
        windows: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return positions [sample, tokens], and whether tokens are predicted [sample, masked].

        Positions are of the class token, tokens to predict, remaining tokens, and padding.
        """
        masked, padding = self.text.masked, segments == PADDING
        counts = np.full_like(windows, masked)
        if self.ends is not None:
            counts = np.clip(np.rint(_PREDICTED_SHARE * windows), 1, masked)
        is_special = np.zeros(self.text.vocabulary, dtype=bool)
        is_special[list(self.special)] = True
        keys = keys + is_special[words]  # special tokens come last
        keys[:, 0] = 2.0
        keys[padding] = 3.0
        chosen = np.argpartition(keys, masked - 1, axis=1)[:, :masked]
        in_order = np.argsort(np.take_along_axis(keys, chosen, axis=1), axis=1)
        chosen = np.take_along_axis(chosen, in_order, axis=1)
        predicted = np.arange(masked) < counts[:, None]
        ranks = np.where(padding, 3, 2).astype(np.uint8)
        ranks[:, 0] = 0
        own = np.take_along_axis(ranks, chosen, axis=1)
        np.put_along_axis(ranks, chosen, np.where(predicted, 1, own).astype(np.uint8), axis=1)
        return np.argsort(ranks, axis=1, kind="stable"), predicted


def chunks(ends: Path, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the samples of unfilled text begin and how many tokens they have, [chunk].

    A piece of the text with more tokens than ``window`` is several chunks, all of which but the
    last are full; a piece of one token is none. ``ends`` is the file of the ends of pieces.
    """
    return _chunks(ends, window, ends.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)  # drawn from for every batch
def _chunks(
    ends: Path, window: int, _written_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    stops = np.fromfile(ends, dtype="<u8").astype(np.int64)
    begins = np.concatenate([np.zeros(1, dtype=np.int64), stops])[:-1]
    parts = -(-(stops - begins) // window)
    pieces = np.repeat(np.arange(len(stops)), parts)
    within = np.arange(len(pieces)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = begins[pieces] + window * within
    lengths = np.minimum(window, stops[pieces] - starts)
    divisible = lengths > 1
    return starts[divisible], lengths[divisible]


def _below(bound: int | NDArray[np.int64], numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale uniform ``numbers`` in [0, 1) to integers in [0, bound)."""
    return (numbers * bound).astype(np.int64)


_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


def key_of(*numbers: int) -> int:
    """Hash ``numbers``, such as seed and epoch, to a key of 64 bits (NumPy's SeedSequence)."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def uniforms(
    key: int, samples: NDArray[np.int64], draws: int, first: int | None = None
) -> NDArray[np.float64]:
    """Draw numbers [sample, draw], uniform in [0, 1), for the indices ``samples`` [sample].

    Each depends on key, sample and draw only, not on earlier draws: SplitMix64 (Steele, Lea and
    Flood 2014) hashes a counter. For draw j of sample i the counter is the key plus
    (i x draws + j + 1) times the golden-ratio constant, modulo 2^64. ``first`` returns only
    so many of a sample's draws.
    """
    counters: NDArray[Any] = samples.astype(np.uint64)[:, None] * np.uint64(draws)
    counters = counters + np.arange(1, (first or draws) + 1, dtype=np.uint64)
    mixed: NDArray[Any] = counters * _GOLDEN + np.uint64(key)  # modulo 2^64
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> shift)) * factor
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
