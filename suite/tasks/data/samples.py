"""What a loader makes of a source, and how it says that there is none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from suite.tasks.task import Data

__all__ = ["Samples", "Source", "Splits", "check_sha256", "refuse_data"]


@dataclass(frozen=True, slots=True)
class Samples:
    """What a model is shown, and what it should answer: one row of each a sample."""

    inputs: Any  #: rows by slice or array of indices, such as images [sample, height, width]
    labels: NDArray[np.int64]  #: classes, of the sample or of places in it

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """The two disjoint parts of a data set."""

    train: Samples
    evaluation: Samples


class Source(Protocol):
    """Where the samples of a data set come from."""

    def files(self, data: Data) -> list[Path]:
        """Return the files that hold them.

        Raises:
            Refusal: exit status 4 where they are not here.
        """

    def check(self, data: Data) -> str:
        """Make sure that the samples are here and the right ones; return their SHA-256.

        Raises:
            Refusal: exit status 4, naming the file.
        """

    def read(self, data: Data) -> Splits:
        """Read and split the samples.

        Raises:
            Refusal: as `check`.
        """


def check_sha256(data: Data, content: bytes) -> str:
    """Return the SHA-256 of ``content``, having compared it with the one that ``data`` states.

    Raises:
        Refusal: exit status 4 where they differ, and other editions are not welcome.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != data.sha256 and data.editions is None:
        raise refuse_data(data, f"data with SHA-256 {data.sha256[:12]}...", f"{digest[:12]}...")
    return digest


def refuse_data(data: Data, expected: str, found: str, remedy: str = "") -> Refusal:
    """Return the refusal of samples that are not what ``data`` describes."""
    remedy = remedy or f"reinstall {data.source.partition(',')[0]}"
    finding = Finding("data.file", expected, found, remedy, path=f"data set {data.name}")
    return Refusal(finding, ExitCode.ENVIRONMENT)
