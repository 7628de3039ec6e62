"""The predictions of a final model, kept beside its log so that anybody can count them again."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.tasks.data import check_data, load
from hybridperf.untrusted import PREDICTIONS_CAP_BYTES, read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Task

__all__ = ["encoded", "labels_here", "quality_of", "read_predictions"]


def read_predictions(path: Path) -> NDArray[np.int64]:
    """Read predicted classes from a .npy file of unknown origin; nothing is unpickled.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is not an array of integers.
    """
    import numpy as np

    content = io.BytesIO(read_bounded(path, PREDICTIONS_CAP_BYTES))
    try:
        with warnings.catch_warnings(action="error"):  # about headers of Python 2
            classes = np.lib.format.read_array(content, allow_pickle=False)
    except Exception as error:  # of Python's tokenizer, among others
        raise ValueError(f"no array of numbers: {error}") from error
    if classes.dtype.kind not in "iu":
        raise ValueError(f"an array of {classes.dtype}")
    return classes.astype(np.int64)


def encoded(classes: NDArray[np.int64]) -> bytes:
    """Return ``classes`` as a .npy file of the smallest unsigned type; below zero becomes int64."""
    import numpy as np

    least, most = (int(classes.min()), int(classes.max())) if classes.size else (0, 0)
    dtype = np.min_scalar_type(most) if least >= 0 else np.dtype(np.int64)
    file = io.BytesIO()
    np.lib.format.write_array(file, classes.astype(dtype), allow_pickle=False)
    return file.getvalue()


def quality_of(classes: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the share of ``classes`` that equal ``labels``.

    Raises:
        ValueError: if their shapes differ.
    """
    if classes.shape != labels.shape:
        raise ValueError(f"predictions of shape {classes.shape}, not {labels.shape}")
    return float((classes == labels).mean())


def labels_here(task: Task, data_sha256: object) -> NDArray[np.int64] | None:
    """Return the labels of the evaluation samples; None if this machine lacks the data.

    ``data_sha256`` is what a manifest says of the data: of a task whose data has editions, another
    one has other labels. They are read once for each task: a result has several runs, and a
    submission several results.
    """
    if task.sha256 not in _LABELS:
        try:
            edition = None if task.data.editions is None else check_data(task.data)
            _LABELS[task.sha256] = edition, load(task.data).evaluation.labels
        except (UserError, ImportError):
            _LABELS[task.sha256] = None
    if (found := _LABELS[task.sha256]) is None:
        return None
    edition, labels = found
    return labels if edition is None or edition == data_sha256 else None


_LABELS: Final[dict[str, tuple[str | None, NDArray[np.int64]] | None]] = {}
#: SHA-256 of the data, where there are editions, and labels; by SHA-256 of the task's file
