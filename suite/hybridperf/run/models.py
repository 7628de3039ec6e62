"""The models that ranks hand over on the clock: that of the last evaluation, and one before it.

Ranks hand their weights over with the predictions of every evaluation, before they are told the
verdict, in memory that they cannot change. So what is scored again is what predicted on the clock.
The one before is drawn at random, and no rank learns which it is: so all of them must be real.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hybridperf.run.evaluation import save_predictions
from hybridperf.run.handover import require_sealed
from hybridperf.run.kept import most_weights_bytes
from hybridperf.run.scratch import remove_folder
from hybridperf.run.spec import weights_part

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.run.spec import RunSpec

__all__ = ["Models"]

_PIECE_BYTES: Final = 2**24


@dataclass(slots=True)
class _Model:
    """The weights that predicted at an evaluation, and what they predicted."""

    epoch: int
    classes: NDArray[np.int64]  #: in the order of the data set
    parts: dict[int, int]  #: file descriptors of sealed memory, by rank


@dataclass(slots=True)
class Models:
    """Weights handed over in the run ``spec``: of the last evaluation, and of one drawn before."""

    spec: RunSpec
    _parts: dict[int, int] = field(default_factory=dict)  # of the evaluation in progress, by rank
    _sizes: dict[int, int] = field(default_factory=dict)  # in bytes
    _last: _Model | None = None
    _drawn: _Model | None = None
    _before: int = 0  # evaluations before the last, from which one is drawn

    def take(self, rank: int, descriptor: int, size: int) -> None:
        """Take the weights of ``rank``: sealed memory of ``size`` bytes.

        Raises:
            ValueError: if it is not, or if there are more bytes than a model can have.
        """
        if (before := self._parts.get(rank)) is not None:  # of an evaluation that was refused
            os.close(before)
        self._parts[rank], self._sizes[rank] = descriptor, size
        require_sealed(descriptor, size)
        total, (most, why) = (
            sum(self._sizes.values()),
            most_weights_bytes(self.spec, len(self._sizes)),
        )
        if total > most:
            raise ValueError(f"{total} bytes of weights, where {most} is the most {why}")

    def conclude(self, epoch: int, classes: NDArray[np.int64]) -> dict[str, int]:
        """Note that the weights taken predicted ``classes`` after ``epoch``.

        Returns how many ranks handed over how many bytes; nothing if none did.
        """
        if self._last is not None:
            self._before += 1
            if secrets.randbelow(self._before) == 0:  # each of them is as likely as the others
                _release(self._drawn)
                self._drawn = self._last
            else:
                _release(self._last)
        self._last = _Model(epoch, classes.copy(), self._parts) if self._parts else None
        found = {"ranks": len(self._sizes), "bytes": sum(self._sizes.values())}
        self._parts, self._sizes = {}, {}
        return found if self._last is not None else {}

    def save(self) -> None:
        """Write them where they are scored, once no process of the run is left.

        What the trainer itself has written there is replaced if it handed over the last model.
        """
        if self._last is None:
            return
        _write(self._last.parts, self.spec.weights)
        if self._drawn is not None:
            earlier = self.spec.of_epoch(self._drawn.epoch)
            _write(self._drawn.parts, earlier.weights)
            save_predictions(earlier.timed_predictions, self._drawn.classes)
            earlier.write()

    def close(self) -> None:
        """Release the memory."""
        for model in (self._last, self._drawn):
            _release(model)
        for descriptor in self._parts.values():
            os.close(descriptor)
        self._last = self._drawn = None
        self._parts = {}


def _release(model: _Model | None) -> None:
    for descriptor in () if model is None else model.parts.values():
        os.close(descriptor)


def _write(parts: Mapping[int, int], folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        remove_folder(folder)
    folder.mkdir()
    for rank, descriptor in parts.items():
        with weights_part(folder, rank).open("xb") as file:
            size, sent = os.fstat(descriptor).st_size, 0
            while sent < size:  # with an offset, since the trainer may move that of the descriptor
                sent += os.sendfile(file.fileno(), descriptor, sent, min(size - sent, _PIECE_BYTES))
