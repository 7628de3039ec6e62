"""The evaluation of a run by the harness: labels, shuffled inputs, and predictions of the ranks."""

from __future__ import annotations

import io
import secrets
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hybridperf.rules.evidence import quality_of
from hybridperf.run.files import write_atomically
from hybridperf.untrusted import PREDICTIONS_CAP_BYTES, read_bounded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Evaluation", "Shuffle", "load_predictions", "save_predictions"]

_SECRET_BITS: Final = 128


class Shuffle:
    """An unpredictable order of the evaluation samples."""

    def __init__(self, samples: int) -> None:
        self._order = np.random.default_rng(secrets.randbits(_SECRET_BITS)).permutation(samples)

    def apply(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return ``inputs`` [sample, ...] in this order."""
        shuffled: NDArray[Any] = inputs[self._order]
        return shuffled

    def undo(self, shuffled: NDArray[Any]) -> NDArray[Any]:
        """Return the array whose samples `apply` has shuffled, [sample, ...]."""
        inputs = np.empty_like(shuffled)
        inputs[self._order] = shuffled
        return inputs


class Evaluation:
    """The labels of the evaluation samples, and the predictions that ranks send in parts."""

    def __init__(self, labels: NDArray[np.int64], shuffle: Shuffle | None) -> None:
        self._labels, self._shuffle = labels, shuffle
        self._predicted = np.zeros_like(labels)
        self._covered = np.zeros(len(labels), dtype=bool)

    def begin(self) -> None:
        """Forget the predictions of the evaluation before."""
        self._covered[:] = False

    def take(self, chunks: Sequence[tuple[int, ...]], payload: memoryview) -> str:
        """Take a rank's predictions for ``chunks`` of samples; return their error, or ``""``."""
        width = int(np.prod(self._labels.shape[1:], dtype=int))
        wanted, place = 0, 0
        for chunk in chunks:
            if len(chunk) != 2 or not 0 <= chunk[0] <= chunk[1] <= len(self._labels):
                return f"predictions for the samples {list(chunk)!r:.40} of {len(self._labels)}"
            wanted += chunk[1] - chunk[0]
        if len(payload) != wanted * width * self._labels.itemsize:
            return f"{len(payload)} bytes of predictions for {wanted} samples"
        classes = np.frombuffer(payload, np.int64).reshape(wanted, *self._labels.shape[1:])
        for first, last in chunks:
            if self._covered[first:last].any():
                return f"two predictions for a sample from {first} to {last - 1}"
            self._predicted[first:last] = classes[place : place + last - first]
            self._covered[first:last] = True
            place += last - first
        return ""

    def quality(self) -> float | None:
        """Return the share of correct predictions; None if a sample has no prediction."""
        if not self._covered.all():
            return None
        return quality_of(self.predictions(), self._labels)

    def predictions(self) -> NDArray[np.int64]:
        """Return the predicted classes, [sample] or [sample, label], in the order of the data."""
        return self._predicted if self._shuffle is None else self._shuffle.undo(self._predicted)


def save_predictions(path: Path, classes: NDArray[np.int64]) -> None:
    """Write predicted ``classes``, [sample] or [sample, label], to the file ``path``."""
    content = io.BytesIO()
    np.lib.format.write_array(content, classes, allow_pickle=False)
    write_atomically(path, content.getvalue())


def load_predictions(path: Path) -> NDArray[np.int64]:
    """Read predicted classes, [sample] or [sample, label], from the untrusted file ``path``.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is not a regular file, too large, or does not hold integers.
    """
    content = io.BytesIO(read_bounded(path, PREDICTIONS_CAP_BYTES))
    try:
        classes = np.lib.format.read_array(content, allow_pickle=False)
    except MemoryError as error:
        raise ValueError(str(error)) from error
    if classes.dtype.kind not in "iu":
        raise ValueError(f"elements of type {classes.dtype}, not integers")
    return classes.astype(np.int64, copy=False)
