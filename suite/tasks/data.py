"""The samples of a task: found, checked against their checksum, split by the published rule."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from suite.tasks.task import Data

__all__ = ["Samples", "Splits", "check_data", "drop_from_page_cache", "load"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Images and their classes: ``images[n, height, width]`` of bytes, ``labels[n]``."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """The two disjoint parts of a data set."""

    train: Samples
    evaluation: Samples


def check_data(data: Data) -> None:
    """Make sure, without loading them, that the samples are here and are the right ones.

    Raises:
        Refusal: exit status 4 where the file is missing, cannot be read or is another one.
    """
    _content(data)


def drop_from_page_cache(data: Data) -> None:
    """Ask the kernel to forget the file, so that a run reads it from storage (MLPerf 6.1)."""
    descriptor = os.open(_SOURCES[data.name].find(), os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def load(data: Data) -> Splits:
    """Read the samples and split them.

    Raises:
        Refusal: as `check_data`, or where the counts differ from the task's.
    """
    splits = _SOURCES[data.name].read(_content(data))
    counts = (len(splits.train), len(splits.evaluation))
    if counts != (data.train_samples, data.eval_samples):
        expected = f"{data.train_samples} training and {data.eval_samples} evaluation samples"
        raise _refuse(data, expected, f"{counts[0]} and {counts[1]}")
    return splits


def _content(data: Data) -> bytes:
    path = _SOURCES[data.name].find()
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise _refuse(data, "a readable gzip file", str(error)) from error
    if (digest := hashlib.sha256(content).hexdigest()) != data.sha256:
        raise _refuse(data, f"data with SHA-256 {data.sha256[:12]}...", f"{digest[:12]}...")
    return content


def _refuse(data: Data, expected: str, found: str) -> Refusal:
    remedy = f"reinstall {data.source.partition(',')[0]}"
    return Refusal(
        Finding("data.file", expected, found, remedy, path=f"data set {data.name}"),
        ExitCode.ENVIRONMENT,
    )


def _find_digits() -> Path:
    # Only the file is wanted: importing the library takes seconds.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        finding = Finding(
            "data.missing",
            "the package scikit-learn, which carries the handwritten digits",
            "no such package",
            "install it with 'pip install scikit-learn'",
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    return Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


def _read_digits(content: bytes) -> Splits:
    """Split the digits: in each class, images 0, 3, 6, ... in file order are held out."""
    import numpy as np

    table = np.loadtxt(content.decode().splitlines(), delimiter=",", dtype=np.int64)
    labels = table[:, -1]
    # The source counts ink from 0 to 16 in each pixel.
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[::3]] = True
    return Splits(
        Samples(images[~held_out], labels[~held_out]), Samples(images[held_out], labels[held_out])
    )


@dataclass(frozen=True, slots=True)
class _Source:
    find: Callable[[], Path]
    read: Callable[[bytes], Splits]


_SOURCES = {"digits": _Source(_find_digits, _read_digits)}
