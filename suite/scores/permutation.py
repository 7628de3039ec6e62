"""Do two sets of times differ, whatever they are distributed as? The permutation test."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.scores.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Permutation", "permutation_test"]

_MOST_SPLITS: Final = 200_000  #: ten runs against ten have 184,756
_DRAWS: Final = 20_000
_SEED: Final = 20_260_101
_STATISTIC: Final = "permutation test of Welch's t, two-sided"
_EQUAL: Final = 1 - 1e-9  #: sums in another order are a little smaller or larger


@dataclass(frozen=True, slots=True)
class Permutation:
    """How many of the ways to split all times in two differ as much as the way they were made."""

    p_value: float
    splits: int  #: that were looked at
    exact: bool  #: those were all there are

    @property
    def method(self) -> str:
        """Return what was tested, and by which splits."""
        if self.exact:
            return f"{_STATISTIC}, all {self.splits:,} splits"
        return f"{_STATISTIC}, {self.splits:,} random splits, seed {_SEED}"


def permutation_test(one: Sequence[float], other: Sequence[float]) -> Permutation | None:
    """Test whether ``one`` and ``other`` are of one distribution; None for fewer than two each.

    The statistic is Welch's t, so that, with many runs, the test also holds where only the means
    are equal and the spreads are not (Janssen 1997). Beyond 200,000 splits, a sample of them with
    the split that was made counted in (Phipson and Smyth 2010).
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
    made = _statistic(values[None, :count], values[None, count:])
    as_far = int((statistics >= made * _EQUAL).sum())
    share = as_far / len(statistics) if exact else (as_far + 1) / (_DRAWS + 1)
    return Permutation(share, len(statistics), exact)


def _all_orders(total: int, count: int) -> NDArray[np.intp]:
    """Return every split: ``count`` places, and then the others."""
    import numpy as np

    first = np.array(list(itertools.combinations(range(total), count)), dtype=np.intp)
    left = np.ones((len(first), total), dtype=bool)
    np.put_along_axis(left, first, values=False, axis=1)
    return np.hstack([first, np.nonzero(left)[1].reshape(len(first), total - count)])


def _random_orders(total: int) -> Iterator[NDArray[np.intp]]:
    import numpy as np

    generator = np.random.default_rng(_SEED)
    for rows in blocks(_DRAWS, total):
        yield generator.random((rows, total)).argsort(axis=1)


def _statistic(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Welch's t of each row without its sign; infinite where only the means differ."""
    import numpy as np

    difference = np.abs(one.mean(axis=1) - other.mean(axis=1))
    spread = one.var(axis=1, ddof=1) / one.shape[1] + other.var(axis=1, ddof=1) / other.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference > 0, difference / np.sqrt(spread), 0.0)
