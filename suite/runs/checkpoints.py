"""Checkpoints of an attempt: each is complete or not there, and the last two are kept.

What is in one is the trainer's own affair; when one is made, and which counts, is the harness's.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from suite.runs.atomic import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["begin_checkpoint", "checkpoint_folder", "complete_checkpoint", "sweep_checkpoints"]

_KEPT: Final = 2  # the evaluation of the last one may not have reached the log
_NAME: Final = re.compile(r"epoch_(\d+)")


def checkpoint_folder(folder: Path, epoch: int) -> Path:
    """Return where the checkpoint made after ``epoch`` stands, once it is complete."""
    return folder / f"epoch_{epoch}"


def begin_checkpoint(folder: Path, epoch: int) -> Path:
    """Return where every rank writes its part of the checkpoint."""
    return folder / f".epoch_{epoch}"


def complete_checkpoint(folder: Path, epoch: int) -> None:
    """Make what all ranks have written a durable checkpoint, and remove those before the last."""
    written = begin_checkpoint(folder, epoch)
    for path in written.rglob("*"):
        if path.is_file():
            _sync_file(path)
    for path in (written, *(path for path in written.rglob("*") if path.is_dir())):
        sync_folder(path)
    written.rename(checkpoint_folder(folder, epoch))
    sync_folder(folder)
    for old in sorted(_complete(folder))[:-_KEPT]:
        shutil.rmtree(checkpoint_folder(folder, old))


def sweep_checkpoints(folder: Path, last: int) -> None:
    """Remove what a killed run was writing, and checkpoints later than that of epoch ``last``."""
    for path in folder.glob(".epoch_*"):
        shutil.rmtree(path)
    for epoch in _complete(folder):
        if epoch > last:
            shutil.rmtree(checkpoint_folder(folder, epoch))


def _complete(folder: Path) -> list[int]:
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return [int(name[1]) for name in names if name is not None]


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
