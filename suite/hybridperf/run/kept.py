"""What is kept of a final model beside its log: predictions, tensors, and weights if asked for."""

from __future__ import annotations

import dataclasses
import shutil
from hashlib import sha256
from typing import TYPE_CHECKING

from hybridperf.evidence.tensors import read_tensors
from hybridperf.log.package import predictions_name
from hybridperf.run.atomic import write_atomically
from hybridperf.run.folder import add_hashes
from hybridperf.run.provenance import code_facts
from hybridperf.tasks.data import data_contents
from hybridperf.tasks.tensors import accepted_tensors
from hybridperf.untrusted import reason

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.run.spec import RunSpec

__all__ = ["another_model", "keep_model"]


def another_model(spec: RunSpec) -> str:
    """Return why a closed run's final weights are not the task's model; ``""`` if they are."""
    accepted = accepted_tensors(spec.task())
    if spec.division != "closed" or not accepted:
        return ""
    try:
        found = read_tensors(_parts(spec))
    except (OSError, ValueError) as error:
        return f"the final weights cannot be read: {reason(error)}"
    if found.sha256 in accepted:
        return ""
    what = f"its {found.count} tensors of {found.values} numbers are not those of the task's model"
    asked = f"as the closed division asks (SHA-256 {found.sha256})"
    return f"{what}, {asked}: enter the open one with --division open"


def keep_model(spec: RunSpec, package: Package, sealed: dict[str, str]) -> dict[str, object]:
    """Keep the predictions of a scored run, and its weights if asked for, in the result's folder.

    Returns the facts for the run's manifest, and adds the new hashes to ``sealed``.

    Raises:
        OSError: if the disk is full.
        UserError: exit status 3 if a file that was sealed before has changed.
    """
    code = code_facts(spec.predictor)
    predictor = {"package": code["trainer"], "sha256": code["trainer_sha256"]}
    parts = _parts(spec)
    try:
        model = dataclasses.asdict(read_tensors(parts))
    except (OSError, ValueError):  # in the open division a trainer may save it in its own way
        model = None
    content = spec.final_predictions.read_bytes()
    name = predictions_name(spec.attempt)
    write_atomically(package.folder / name, content)
    digests = {name: sha256(content).hexdigest()}
    facts: dict[str, object] = {
        "data_contents_sha256": data_contents(spec.task().data),
        "predictor": predictor,
        "model": model,
        "predictions": {"path": name, "sha256": digests[name]},
    }
    if spec.keep_weights:
        kept = {f"weights_{spec.attempt}_{path.name}": path for path in parts}
        for target, path in kept.items():
            shutil.copyfile(path, package.folder / target, follow_symlinks=False)
        # Their hashes are in the manifest alone: where they are large, they are kept elsewhere.
        facts["weights"] = sorted(kept)
    add_hashes(package, digests, sealed)
    return facts


def _parts(spec: RunSpec) -> list[Path]:
    return sorted(spec.weights.glob("part_*.safetensors"))
