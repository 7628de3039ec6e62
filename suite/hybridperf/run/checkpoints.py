"""Checkpoints of an attempt: each appears atomically when complete, and the last two are kept.

The trainer decides their content; the harness decides when they are made and which one is used.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from hybridperf.run.atomic import sync

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["begin_checkpoint", "checkpoint_folder", "complete_checkpoint", "sweep_checkpoints"]

_KEPT: Final = 2  # two: the evaluation after the last one may not be in the log yet
_NAME: Final = re.compile(r"epoch_(\d+)")


def checkpoint_folder(folder: Path, epoch: int) -> Path:
    """Return the folder of the complete checkpoint made after ``epoch``."""
    return folder / f"epoch_{epoch}"


def begin_checkpoint(folder: Path, epoch: int) -> Path:
    """Return the temporary folder to which every rank writes its part of the checkpoint."""
    return folder / f".epoch_{epoch}"


def complete_checkpoint(folder: Path, epoch: int) -> None:
    """Make the checkpoint that all ranks have written durable, and remove all but the last two."""
    written = begin_checkpoint(folder, epoch)
    for path in (written, *written.rglob("*")):
        if path.is_file() or path.is_dir():
            sync(path)
    written.rename(checkpoint_folder(folder, epoch))
    sync(folder)
    for old in sorted(_complete(folder))[:-_KEPT]:
        shutil.rmtree(checkpoint_folder(folder, old))


def sweep_checkpoints(folder: Path, last: int) -> None:
    """Remove incomplete checkpoints, and complete ones made after epoch ``last``."""
    for path in folder.glob(".epoch_*"):
        shutil.rmtree(path)
    for epoch in _complete(folder):
        if epoch > last:
            shutil.rmtree(checkpoint_folder(folder, epoch))


def _complete(folder: Path) -> list[int]:
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return [int(name[1]) for name in names if name is not None]
