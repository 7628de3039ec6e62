"""The models of a run: handed over on the clock, checked, scored again, and published.

Ranks hand their weights over with the predictions of every evaluation, before they are told the
verdict, in memory that they cannot change. So the model that is scored again is the model that
predicted on the clock. Besides the last model, one of an evaluation before is scored: it is drawn
at random, and no rank learns which it is, so all of them must be real.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import shutil
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from hybridperf.log.package import NAME, predictions_name
from hybridperf.rules.evidence import read_tensors
from hybridperf.run.access import require_sealed
from hybridperf.run.evaluation import save_predictions
from hybridperf.run.files import remove_folder, write_atomically
from hybridperf.run.provenance import code_facts, file_sha256
from hybridperf.run.spec import weights_part, weights_parts
from hybridperf.tasks.data import data_contents
from hybridperf.tasks.registry import accepted_tensors, tensor_values
from hybridperf.untrusted import WEIGHTS_CAP_BYTES, reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.log.package import Package
    from hybridperf.run.spec import RunSpec

__all__ = [
    "Models",
    "keep_model",
    "model_mismatch",
    "most_weights_bytes",
    "remove_excess_weights",
    "weights_sha256",
]

_PIECE_BYTES: Final = 2**24
_NUMBER_BYTES: Final = 8  #: bytes of the widest type of a tensor
_MARGIN_BYTES: Final = 2**20  #: bytes of a file for names and shapes
_MOST_PARTS: Final = 1000  #: whose names and hashes the manifest lists


@dataclass(slots=True)
class _Model:
    """The weights at an evaluation, and their predictions."""

    epoch: int
    classes: NDArray[np.int64]  #: [sample] or [sample, label], in the order of the data
    parts: dict[int, int]  #: file descriptors of sealed memory, by rank


@dataclass(slots=True)
class Models:
    """The weights of the last evaluation of the run ``spec``, and of an earlier one at random."""

    spec: RunSpec
    # Descriptors and bytes of the evaluation in progress, by rank.
    _parts: dict[int, int] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _last: _Model | None = None
    _drawn: _Model | None = None
    _before: int = 0  # evaluations before the last, from which one is drawn

    def take(self, rank: int, descriptor: int, size: int) -> None:
        """Take the weights of ``rank``: sealed memory of ``size`` bytes.

        Raises:
            ValueError: if the memory is another, or there are more bytes than a model can have.
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
        """Note that the weights of the evaluation after ``epoch`` predicted ``classes``.

        Returns the number of ranks that handed weights over, and of bytes; nothing without weights.
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

    @property
    def held(self) -> bool:
        """Return whether the weights of the last evaluation were handed over."""
        return self._last is not None

    def save(self) -> None:
        """Write the models to the folders for rescoring, once no process of the run is left.

        The last model replaces the files that the trainer itself wrote there.
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
            while sent < size:  # with an offset, since the trainer may move the descriptor's
                sent += os.sendfile(file.fileno(), descriptor, sent, min(size - sent, _PIECE_BYTES))


def weights_sha256(spec: RunSpec) -> dict[str, str]:
    """Return the SHA-256 of each file of final weights."""
    return {path.name: file_sha256(path) for path in weights_parts(spec.weights)}


def most_weights_bytes(spec: RunSpec, parts: int) -> tuple[int, str]:
    """Return the upper limit of the bytes of weights in ``parts`` files, and its reason.

    In the closed division the limit follows from the task's tensors.
    """
    values = tensor_values(spec.task()) if spec.division == "closed" else None
    if values is None:
        return WEIGHTS_CAP_BYTES, f"in the {spec.division} division"
    most = values * _NUMBER_BYTES + parts * _MARGIN_BYTES
    return most, f"for the {values} numbers of the task's model"


def remove_excess_weights(spec: RunSpec) -> str:
    """Remove final weights that exceed the limits on size and number; return what was removed.

    Too many parts, or parts with long names, would make a manifest that nobody reads.
    """
    parts = weights_parts(spec.weights)
    odd = next((path.name for path in parts if not NAME.fullmatch(path.name)), None)
    if odd is not None or len(parts) > _MOST_PARTS:
        remove_folder(spec.weights)
        if odd is not None:
            return f"the trainer saved weights in {odd!r:.80}, which is no name of a part"
        return f"the trainer saved weights in {len(parts)} files, and {_MOST_PARTS} is the most"
    size = sum(path.lstat().st_size for path in parts)
    most, why = most_weights_bytes(spec, len(parts))
    if size <= most:
        return ""
    remove_folder(spec.weights)
    return f"the trainer saved {size} bytes of weights, and {most} is the most {why}"


def model_mismatch(spec: RunSpec) -> str:
    """Return how a closed run's final weights differ from the task's model; ``""`` if equal."""
    accepted = accepted_tensors(spec.task())
    if spec.division != "closed" or not accepted:
        return ""
    try:
        found = read_tensors(weights_parts(spec.weights))
    except (OSError, ValueError) as error:
        return f"the final weights cannot be read: {reason(error)}"
    if found.sha256 in accepted:
        return ""
    what = f"its {found.count} tensors of {found.values} numbers differ from the task's model"
    asked = f"as the closed division asks (SHA-256 {found.sha256})"
    return f"{what}, {asked}: enter the open one with --division open"


def keep_model(spec: RunSpec, package: Package) -> dict[str, object]:
    """Publish the predictions of a scored run, and its weights if requested, with the result.

    Returns the facts for the run's manifest; SHA256SUMS lists the predictions.

    Raises:
        OSError: if the disk is full.
    """
    code = code_facts(spec.predictor)
    predictor = {"package": code["trainer"], "sha256": code["trainer_sha256"]}
    parts = weights_parts(spec.weights)
    try:
        model = dataclasses.asdict(read_tensors(parts))
    except (OSError, ValueError):  # in the open division a trainer may save it in its own way
        model = None
    content = spec.final_predictions.read_bytes()
    name = predictions_name(spec.attempt)
    write_atomically(package.folder / name, content)
    facts: dict[str, object] = {
        "data_contents_sha256": data_contents(spec.task().data),
        "predictor": predictor,
        "model": model,
        "predictions": {"path": name, "sha256": sha256(content).hexdigest()},
    }
    if spec.keep_weights:
        kept = {f"weights_{spec.attempt}_{path.name}": path for path in parts}
        _require_space(package.folder, parts)
        for target, path in kept.items():
            shutil.copyfile(path, package.folder / target, follow_symlinks=False)
        # Their hashes are in the manifest alone: where they are large, they are kept elsewhere.
        facts["weights"] = sorted(kept)
    return facts


def _require_space(folder: Path, files: list[Path]) -> None:
    """Check that copies of ``files`` fit into ``folder``, before they fill the disk.

    Raises:
        OSError: if they do not.
    """
    if sum(path.stat().st_size for path in files) > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
