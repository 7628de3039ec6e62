"""The weights that a run begins from, where they are given: their file, hash and first quality.

The harness hands the file to the trainer read-only, before the clock starts. The trainer loads it
under any plan, and predicts the evaluation samples once: only then does the run start.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.run.provenance import file_sha256
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.task import WeightFormat  # noqa: TC001 - resolved when a spec is read

if TYPE_CHECKING:
    from hybridperf.tasks.task import Division, Task

__all__ = ["InitialWeights", "find_initial_weights", "judge_initial_weights"]


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """A file of weights to begin from, and the quality that they must have."""

    path: str  #: absolute
    sha256: str
    format: WeightFormat | None = None  #: None: names of tensors tell the format
    quality: float | None = None  #: of the first evaluation; None: any quality
    tolerance: float = 0.0  #: largest difference from ``quality``

    @property
    def real_path(self) -> str:
        """Return the path without links, which the sandbox need not show."""
        return os.path.realpath(self.path)

    @property
    def facts(self) -> dict[str, object]:
        """Return what log and manifest state of the file."""
        return {"file": Path(self.path).name, "sha256": self.sha256}

    def mismatch(self, quality: float) -> str:
        """Return a sentence if the first evaluation has not the stated quality, else ``""``."""
        if self.quality is None or abs(quality - self.quality) <= self.tolerance:
            return ""
        return Finding(
            "run.initial",
            f"a first quality of {self.quality:g} +- {self.tolerance:g}, as the task states",
            f"{quality:.5f}",
            "use the weights and the data of the task",
            Path(self.path).name,
        ).sentence


def find_initial_weights(task: Task, own: Path | None) -> InitialWeights | None:
    """Return the weights that runs of ``task`` begin from; None if they begin from random ones.

    ``own`` is a file of the user's. The task's own file is in the folder of the data.

    Raises:
        UserError: exit status 4 if there is no such file, or it has another hash than the task's.
    """
    if own is not None:
        return InitialWeights(str(own.absolute()), _sha256(own.absolute()))
    if (stated := task.initial) is None:
        return None
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        remedy = f"name the folder with --data-dir or in the variable {DATA_VARIABLE}"
        raise _refuse(stated.file, "a folder with the weights of the task", "none", remedy)
    path = Path(folder, stated.file).absolute()
    if (found := _sha256(path)) != stated.sha256:
        raise _refuse(
            str(path),
            f"weights with SHA-256 {stated.sha256[:12]}..., as {task.name} states",
            f"{found[:12]}...",
            "fetch the file again, or begin from others with --initial in the open division",
        )
    return InitialWeights(
        str(path), found, stated.format, quality=stated.quality, tolerance=stated.tolerance
    )


def judge_initial_weights(own: Path | None, division: Division) -> list[Finding]:
    """Return a finding if the closed division does not allow weights of the user's."""
    if own is None or division == "open":
        return []
    return [
        Finding(
            "division.initial",
            "the weights that the task begins from, in the closed division",
            f"--initial {own.name}",
            "drop it, or enter the open division with --division open",
        )
    ]


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file of weights; a file that does not change is read once."""
    try:
        status = path.stat()
        if not path.is_file():
            raise _refuse(str(path), "a file of weights", "a folder or a device", "name a file")
        return _sha256_of(path, status.st_ctime_ns, status.st_size)
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        raise _refuse(
            str(path), "a file of weights", found, "name a file that can be read"
        ) from error


@functools.lru_cache(maxsize=8)
def _sha256_of(path: Path, _changed_ns: int, _size: int) -> str:
    return file_sha256(path)


def _refuse(path: str, expected: str, found: str, remedy: str) -> UserError:
    return UserError.of(
        "run.initial", expected, found, remedy, path=path, exit_code=ExitCode.ENVIRONMENT
    )
