"""The interface of data sources: samples, splits, progress, and the error for missing data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Data

__all__ = [
    "Progress",
    "Samples",
    "Source",
    "Splits",
    "check_sha256",
    "refuse_data",
    "require_counts",
]


class Progress(Protocol):
    """Receives the progress of the preparation of a data set."""

    def __call__(self, done: float, total: int, what: str) -> None:
        """Handle the progress, ``done`` of ``total``; ``what`` describes it: ``120 images``."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs [sample, ...] and labels, with one row per sample."""

    inputs: Any  #: indexed by a slice or indices [batch]: images [sample, height, width], or rows
    labels: NDArray[np.int64]  #: classes: [sample], or [sample, label] for several per sample

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """The two disjoint parts of a data set."""

    train: Samples
    evaluation: Samples


class Source(Protocol):
    """A source of samples."""

    in_memory: bool = False  #: whether inputs are arrays, which `read` reads as a whole

    def files(self, data: Data) -> list[Path]:
        """Return the files that contain the samples.

        Raises:
            UserError: exit status 4 if they are missing.
        """

    def check(self, data: Data) -> str:
        """Verify that the samples exist and are the expected ones; return their SHA-256.

        Raises:
            UserError: exit status 4, naming the file.
        """

    def read(self, data: Data) -> Splits:
        """Read and split the samples.

        Raises:
            UserError: as `check`.
        """

    def verify(self, data: Data, progress: Progress) -> bool:  # noqa: ARG002 - none by default
        """Verify once that every sample can be decoded; return False if nothing remained to do.

        By default there is nothing to decode.

        Raises:
            UserError: exit status 4, naming the first sample that is damaged.
        """
        return False

    def prepare(self, data: Data, progress: Progress) -> bool:
        """Prepare the data once for all runs; return False if nothing remained to be done.

        By default that is `check` and `verify`.

        Raises:
            UserError: as `check` and `verify`.
        """
        self.check(data)
        return self.verify(data, progress)


def check_sha256(data: Data, content: bytes) -> str:
    """Compare the SHA-256 of ``content`` with the one in ``data``; return it.

    Raises:
        UserError: exit status 4 if they differ and ``data`` does not allow other editions.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != data.sha256 and data.editions is None:
        raise refuse_data(data, f"data with SHA-256 {data.sha256[:12]}...", f"{digest[:12]}...")
    return digest


def require_counts(data: Data, splits: Splits) -> Splits:
    """Compare the sizes of ``splits`` with those in ``data``; return ``splits``.

    Raises:
        UserError: exit status 4 if they differ.
    """
    counts = (len(splits.train), len(splits.evaluation))
    if counts != (data.train_samples, data.eval_samples):
        expected = f"{data.train_samples} training and {data.eval_samples} evaluation samples"
        raise refuse_data(data, expected, f"{counts[0]} and {counts[1]}")
    return splits


def refuse_data(data: Data, expected: str, found: str, remedy: str = "") -> UserError:
    """Return the error, of exit status 4, for samples that are not those that ``data`` states."""
    remedy = remedy or f"reinstall {data.source.partition(',')[0]}"
    finding = Finding("data.file", expected, found, remedy, path=f"data set {data.name}")
    return UserError(finding, ExitCode.ENVIRONMENT)
