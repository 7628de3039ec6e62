"""Protection against links, pipes and folders that a trainer put in place of regular files.

Through a link the harness would truncate or publish another file; reading a pipe would block.
"""

from __future__ import annotations

import shutil
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.run.spec import RunSpec

__all__ = ["remove_irregular_files"]


def remove_irregular_files(spec: RunSpec) -> str:
    """Remove whatever is not a regular file where the harness expects one.

    Returns a clause that names the replaced files, or ``""`` if there are none. Call it after
    all processes of the run have ended.
    """
    found = []
    for path in _expected_files(spec):
        kind = _kind(path)
        if kind not in {"", "a regular file"}:
            _remove(path)
            found.append(f"{path.relative_to(spec.folder)}, which is {kind}")
    return f"the trainer replaced {', '.join(found[:3])}" if found else ""


def _expected_files(spec: RunSpec) -> Iterator[Path]:
    """Yield the files that the harness reads or writes."""
    yield from (spec.path, spec.log, spec.predictions, spec.ending)
    for node in range(spec.nodes):
        yield from (spec.output_of(node), spec.pulse_of(node))
    if _kind(spec.weights) == "a folder":
        yield from sorted(spec.weights.iterdir())
    else:
        yield spec.weights


def _kind(path: Path) -> str:
    """Return the kind of file at ``path``, or ``""`` if there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISREG(status.st_mode):
        return "a regular file" if status.st_nlink == 1 else "a file with other names"
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(status.st_mode), "no regular file")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
