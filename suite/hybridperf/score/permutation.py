"""Test without distributional assumptions whether two samples of times differ."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.interval import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Permutation", "permutation_test"]

_MOST_SPLITS: Final = 200_000  #: 10 against 10 runs have 184,756
_DRAWS: Final = 20_000
_SEED: Final = 20_260_101
_STATISTIC: Final = "permutation test of Welch's t, two-sided"
_EQUAL: Final = 1 - 1e-9  #: tolerance for the order of floating-point summation


@dataclass(frozen=True, slots=True)
class Permutation:
    """The p-value of a permutation test and how it was obtained."""

    p_value: float
    splits: int  #: number of splits evaluated
    exact: bool  #: all possible splits were evaluated

    @property
    def method(self) -> str:
        """Return a description of the statistic and of the splits evaluated."""
        if self.exact:
            return f"{_STATISTIC}, all {self.splits:,} splits"
        return f"{_STATISTIC}, {self.splits:,} random splits, seed {_SEED}"


def permutation_test(one: Sequence[float], other: Sequence[float]) -> Permutation | None:
    """Test whether ``one`` [run] and ``other`` [run] come from one distribution.

    The statistic is Welch's t, which makes the test asymptotically valid for equal means with
    unequal variances (Janssen 1997). Above 200,000 splits, a random sample that includes the
    observed split is used (Phipson and Smyth 2010). Returns None for fewer than two values each.
    """
    import numpy as np

    count, total = len(one), len(one) + len(other)
    if min(count, total - count) < 2:
        return None
    values = np.asarray([*one, *other], dtype=np.float64)
    exact = math.comb(total, count) <= _MOST_SPLITS
    some = [_all_orders(total, count)] if exact else _random_orders(total)
    statistics = np.concatenate(
        [_statistic(values[each[:, :count]], values[each[:, count:]]) for each in some]
    )
    observed = _statistic(values[None, :count], values[None, count:])
    extreme = int((statistics >= observed * _EQUAL).sum())
    share = extreme / len(statistics) if exact else (extreme + 1) / (_DRAWS + 1)
    return Permutation(share, len(statistics), exact)


def _all_orders(total: int, count: int) -> NDArray[np.intp]:
    """Return every split [split, total]: ``count`` indices, followed by the remaining ones."""
    import numpy as np

    first = np.array(list(itertools.combinations(range(total), count)), dtype=np.intp)
    remaining = np.ones((len(first), total), dtype=bool)
    np.put_along_axis(remaining, first, values=False, axis=1)
    return np.hstack([first, np.nonzero(remaining)[1].reshape(len(first), total - count)])


def _random_orders(total: int) -> Iterator[NDArray[np.intp]]:
    import numpy as np

    generator = np.random.default_rng(_SEED)
    for rows in blocks(_DRAWS, total):
        yield generator.random((rows, total)).argsort(axis=1)


def _statistic(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute value of Welch's t per row [split]; infinite if only variances are 0."""
    import numpy as np

    difference = np.abs(one.mean(axis=1) - other.mean(axis=1))
    spread = one.var(axis=1, ddof=1) / one.shape[1] + other.var(axis=1, ddof=1) / other.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference > 0, difference / np.sqrt(spread), 0.0)
