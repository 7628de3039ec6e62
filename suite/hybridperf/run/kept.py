"""What is kept of a final model beside its log: predictions, tensors, and weights if asked for."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from hybridperf.log.package import NAME, predictions_name
from hybridperf.rules.evidence import read_tensors
from hybridperf.run.atomic import write_atomically
from hybridperf.run.provenance import code_facts, file_sha256
from hybridperf.run.scratch import remove_folder
from hybridperf.run.spec import weights_parts
from hybridperf.tasks.data import data_contents
from hybridperf.tasks.registry import accepted_tensors, tensor_values
from hybridperf.untrusted import WEIGHTS_CAP_BYTES, reason

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.run.spec import RunSpec

__all__ = [
    "another_model",
    "keep_model",
    "most_weights_bytes",
    "remove_excess_weights",
    "weights_sha256",
]

_NUMBER_BYTES: Final = 8  #: of the widest type of tensors
_MARGIN_BYTES: Final = 2**20  #: of a file, for names and shapes
_MOST_PARTS: Final = 1000  #: whose names and hashes the manifest lists


def weights_sha256(spec: RunSpec) -> dict[str, str]:
    """Return the SHA-256 of each file of final weights."""
    return {path.name: file_sha256(path) for path in weights_parts(spec.weights)}


def most_weights_bytes(spec: RunSpec, parts: int) -> tuple[int, str]:
    """Return the most bytes that weights in so many ``parts`` may have, and why.

    In the closed division the task's tensors say how large they can be. Too many parts, or parts
    with long names, would make a manifest that nobody reads.
    """
    values = tensor_values(spec.task()) if spec.division == "closed" else None
    if values is None:
        return WEIGHTS_CAP_BYTES, f"in the {spec.division} division"
    most = values * _NUMBER_BYTES + parts * _MARGIN_BYTES
    return most, f"for the {values} numbers of the task's model"


def remove_excess_weights(spec: RunSpec) -> str:
    """Remove final weights that are too large to be read and copied; return what was removed."""
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


def another_model(spec: RunSpec) -> str:
    """Return why a closed run's final weights are not the task's model; ``""`` if they are."""
    accepted = accepted_tensors(spec.task())
    if spec.division != "closed" or not accepted:
        return ""
    try:
        found = read_tensors(weights_parts(spec.weights))
    except (OSError, ValueError) as error:
        return f"the final weights cannot be read: {reason(error)}"
    if found.sha256 in accepted:
        return ""
    what = f"its {found.count} tensors of {found.values} numbers are not those of the task's model"
    asked = f"as the closed division asks (SHA-256 {found.sha256})"
    return f"{what}, {asked}: enter the open one with --division open"


def keep_model(spec: RunSpec, package: Package) -> dict[str, object]:
    """Keep the predictions of a scored run, and its weights if asked for, in the result's folder.

    Returns the facts for the run's manifest; the seal lists the hash of the predictions.

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
