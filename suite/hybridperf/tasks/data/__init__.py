"""The data of tasks: sources, checksums and the published split."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.tasks.data.cifar import Cifar10
from hybridperf.tasks.data.digits import Digits
from hybridperf.tasks.data.pictures import Pictures
from hybridperf.tasks.data.samples import (
    DataSource,
    Samples,
    Splits,
    contents_sha256,
    require_counts,
)
from hybridperf.tasks.data.texts import Texts
from hybridperf.tasks.data.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hybridperf.tasks.data.samples import PrepareProgress
    from hybridperf.tasks.task import Data

__all__ = [
    "Samples",
    "Splits",
    "check_data",
    "data_contents",
    "data_files",
    "drop_from_page_cache",
    "import_packages",
    "in_memory",
    "load",
    "prepare",
    "require_readable",
]

_SOURCES: Final[Mapping[str, DataSource]] = {
    "cifar10": Cifar10(),
    "digits": Digits(),
    "pictures": Pictures(),
    "texts": Texts(),
    "topics": Topics(),
}


def check_data(data: Data) -> str:
    """Verify that the samples exist and match the expected checksum; return their SHA-256.

    Raises:
        UserError: exit status 4 if the source is missing, unreadable or has another checksum.
    """
    return _source(data).check(data)


def data_files(data: Data) -> list[Path]:
    """Return the files that hold the samples.

    Raises:
        UserError: exit status 4 if they are missing.
    """
    return _source(data).files(data)


def drop_from_page_cache(data: Data) -> None:
    """Drop the data files from the page cache, so that a run reads them from storage.

    Source: MLPerf Training rules, 6.1.
    """
    for path in data_files(data):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def import_packages(data: Data) -> None:
    """Import the packages of `load` before the clock runs."""
    _source(data).import_packages(data)


def data_contents(data: Data) -> str:
    """Return the SHA-256 of the contents of all data files; a large data set is read once.

    Raises:
        UserError: exit status 4 if they are missing.
    """
    return contents_sha256(_source(data).files(data))


def in_memory(data: Data) -> bool:
    """Return whether the inputs of the samples are arrays, which processes can share."""
    return _source(data).in_memory


def load(data: Data) -> Splits:
    """Read the samples and split them.

    Raises:
        UserError: from `check_data`, and if the counts differ from the task's.
    """
    return require_counts(data, _source(data).read(data))


def prepare(data: Data, progress: PrepareProgress) -> bool:
    """Prepare the data once for all runs: tokenise text, or decode every image as a check.

    Returns whether anything remained to be done.

    Raises:
        UserError: from `check_data`, and if there is no disk space.
    """
    done = _source(data).prepare(data, progress)
    data_contents(data)
    return done


def require_readable(data: Data) -> None:
    """Verify that every sample can be read; decode the images that `prepare` has not decoded.

    Raises:
        UserError: from `check_data`, and if an image is damaged.
    """
    source = _source(data)
    source.check(data)
    source.verify(data, lambda *_: None)
    data_contents(data)


def _source(data: Data) -> DataSource:
    """Return the source of the samples.

    Raises:
        UserError: exit status 2 if ``data`` names no loader.
    """
    if data.name not in _SOURCES:
        expected, remedy = f"data.name to be one of {', '.join(_SOURCES)}", "name one in the task"
        raise UserError.of("data.name", expected, repr(data.name), remedy)
    return _SOURCES[data.name]
