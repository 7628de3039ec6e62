"""The samples of a task: found, checked against their checksum, split by the published rule."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.tasks.data.cifar import Cifar10
from suite.tasks.data.digits import Digits
from suite.tasks.data.pictures import Pictures
from suite.tasks.data.samples import Samples, Source, Splits, refuse_data
from suite.tasks.data.texts.source import Texts
from suite.tasks.data.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suite.tasks.data.texts.prepare import Progress
    from suite.tasks.task import Data

__all__ = ["Samples", "Splits", "check_data", "drop_from_page_cache", "load", "prepare"]

_SOURCES: Final[Mapping[str, Source]] = {
    "cifar10": Cifar10(),
    "digits": Digits(),
    "pictures": Pictures(),
    "texts": Texts(),
    "topics": Topics(),
}


def check_data(data: Data) -> str:
    """Make sure that the samples are here and are the right ones; return their SHA-256.

    Raises:
        Refusal: exit status 4 where the source is missing, cannot be read or is another one.
    """
    return _source(data).check(data)


def drop_from_page_cache(data: Data) -> None:
    """Ask the kernel to forget the files, so that a run reads them from storage (MLPerf 6.1)."""
    for path in _source(data).files(data):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def load(data: Data) -> Splits:
    """Read the samples and split them.

    Raises:
        Refusal: as `check_data`, or where the counts differ from the task's.
    """
    splits = _source(data).read(data)
    counts = (len(splits.train), len(splits.evaluation))
    if counts != (data.train_samples, data.eval_samples):
        expected = f"{data.train_samples} training and {data.eval_samples} evaluation samples"
        raise refuse_data(data, expected, f"{counts[0]} and {counts[1]}")
    return splits


def prepare(data: Data, progress: Progress) -> bool:
    """Make what reading the samples takes, once; return whether anything was left to do.

    Raises:
        Refusal: as `check_data`, or where there is no room.
    """
    source = _source(data)
    return isinstance(source, Texts) and source.prepare(data, progress)


def _source(data: Data) -> Source:
    """Return where the samples come from.

    Raises:
        Refusal: exit status 2 where ``data`` names no loader.
    """
    if data.name not in _SOURCES:
        expected, remedy = f"data.name to be one of {', '.join(_SOURCES)}", "name one in the task"
        raise Refusal(Finding("data.name", expected, repr(data.name), remedy), ExitCode.USAGE)
    return _SOURCES[data.name]
