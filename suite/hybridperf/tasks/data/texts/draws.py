"""Counter-based random numbers: each depends on key, sample and draw only, not on earlier draws.

SplitMix64 (Steele, Lea and Flood 2014) hashes a counter. For draw j of sample i the counter is the
key plus (i x draws + j + 1) times the golden-ratio constant, modulo 2^64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["key_of", "uniforms"]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


def key_of(*numbers: int) -> int:
    """Hash ``numbers``, such as seed and epoch, to a key of 64 bits (NumPy's SeedSequence)."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def uniforms(key: int, samples: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Draw numbers [sample, draw], uniform in [0, 1), for the indices ``samples`` [sample]."""
    counters: NDArray[Any] = samples.astype(np.uint64)[:, None] * np.uint64(draws)
    counters = counters + np.arange(1, draws + 1, dtype=np.uint64)
    mixed: NDArray[Any] = counters * _GOLDEN + np.uint64(key)  # modulo 2^64
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> shift)) * factor
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
