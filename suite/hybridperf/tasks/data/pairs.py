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

Random numbers depend on a key and the sample's index (`uniforms`). In training the key is made from
seed and epoch; in evaluation it is constant, and windows start at the beginning of their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hybridperf.tasks.task import Text

__all__ = ["Pairs", "TextBlocks", "key_of", "uniforms"]

_EVALUATION: Final = 0  #: seed of the key of evaluation samples
_MASK_SHARE, _REPLACE_SHARE = 0.8, 0.1
_MOST_SAMPLES: Final = 1024  #: samples drawn at once, to bound memory


@dataclass(frozen=True, slots=True)
class Pairs:
    """Samples with their targets."""

    inputs: NDArray[np.uint16]
    #: [sample, tokens, 3]: id, position and segment of each token; the class token comes first,
    #: then the tokens to predict in the order of position, then the remaining tokens
    targets: NDArray[np.int64]  #: [sample, masked]: original ids of the tokens to predict
    relations: NDArray[np.int64]  #: [sample]: 0 where B follows A, 1 where it does not


@dataclass(frozen=True, slots=True)
class TextBlocks:
    """The tokens of a split, divided into one block per sample and read when samples are drawn."""

    path: Path  #: file of tokens; reading processes map it into memory
    count: int  #: number of tokens
    samples: int
    text: Text
    special: tuple[int, ...]  #: ids of padding, unknown, class, separator and mask

    def __len__(self) -> int:
        return self.samples

    def draw(self, indices: NDArray[np.int64], seed: int, epoch: int) -> Pairs:
        """Draw the training samples of the blocks ``indices`` [sample] in ``epoch``, from 1."""
        return self._draw(indices, key_of(seed, epoch, 1), within=True)

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

    def _draw(self, indices: NDArray[np.int64], key: int, *, within: bool) -> Pairs:
        tokens, masked = self.text.tokens, self.text.masked
        drawn = uniforms(key, indices, 4 + tokens + 2 * masked)
        start, length, relation, elsewhere = drawn[:, :4].T
        stride = (self.count - self.text.window) // self.samples
        starts = indices * stride + (_below(stride, start) if within else 0)
        quarter = self.text.window // 4
        lengths = quarter + _below(self.text.window - 2 * quarter + 1, length)
        relations = (relation >= 0.5).astype(np.int64)
        others = _below(self.count - self.text.window, elsewhere)
        seconds = np.where(relations == 0, starts + lengths, others)
        words, segments = self._framed(starts, seconds, lengths)

        order = self._order(words, drawn[:, 4 : 4 + tokens])
        targets = np.take_along_axis(words, order[:, 1 : 1 + masked], axis=1)
        kinds, entries = np.split(drawn[:, 4 + tokens :], 2, axis=1)
        shown = np.take_along_axis(words, order, axis=1)
        shown[:, 1 : 1 + masked] = np.select(
            [kinds < _MASK_SHARE, kinds < _MASK_SHARE + _REPLACE_SHARE],
            [np.int64(self.special[-1]), _below(self.text.vocabulary, entries)],
            targets,
        )
        segments = np.take_along_axis(segments, order, axis=1)
        return Pairs(
            np.stack([shown, order, segments], axis=2).astype(np.uint16), targets, relations
        )

    def _framed(
        self, starts: NDArray[Any], seconds: NDArray[Any], lengths: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and segments of all tokens in the order of position, both [sample, tokens]."""
        *_, first, separator, _ = self.special
        places = np.arange(self.text.tokens)
        ends = lengths[:, None] + 1  # positions of the separators in the middle
        segments = places > ends
        sources = np.where(segments, seconds[:, None] - ends, starts[:, None]) + places - 1
        stored = np.memmap(self.path, dtype="<u2", mode="r", shape=(self.count,))
        words = stored[np.clip(sources, 0, self.count - 1)].astype(np.int64)
        words[:, 0] = first
        words[(places == ends) | (places == places[-1])] = separator
        return words, segments.astype(np.int64)

    def _order(self, words: NDArray[np.int64], keys: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return positions [sample, tokens]: class token, tokens to predict, remaining tokens."""
        is_special = np.zeros(self.text.vocabulary, dtype=bool)
        is_special[list(self.special)] = True
        keys = keys + is_special[words]  # special tokens come last
        keys[:, 0] = 2.0
        chosen = np.argpartition(keys, self.text.masked - 1, axis=1)[:, : self.text.masked]
        ranks = np.full(words.shape, 2, dtype=np.uint8)
        ranks[:, 0] = 0
        np.put_along_axis(ranks, chosen, 1, axis=1)
        return np.argsort(ranks, axis=1, kind="stable")


def _below(bound: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
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


def uniforms(key: int, samples: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Draw numbers [sample, draw], uniform in [0, 1), for the indices ``samples`` [sample].

    Each depends on key, sample and draw only, not on earlier draws: SplitMix64 (Steele, Lea and
    Flood 2014) hashes a counter. For draw j of sample i the counter is the key plus
    (i x draws + j + 1) times the golden-ratio constant, modulo 2^64.
    """
    counters: NDArray[Any] = samples.astype(np.uint64)[:, None] * np.uint64(draws)
    counters = counters + np.arange(1, draws + 1, dtype=np.uint64)
    mixed: NDArray[Any] = counters * _GOLDEN + np.uint64(key)  # modulo 2^64
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> shift)) * factor
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
