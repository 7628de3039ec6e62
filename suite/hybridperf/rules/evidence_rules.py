"""Rules for the final model of a run: its tensors, its predictor and its predictions."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from hybridperf.evidence.predictions import labels_here, quality_of, read_predictions
from hybridperf.evidence.tensors import read_tensors
from hybridperf.log import keys
from hybridperf.log.package import NAME, PUT_BACK
from hybridperf.rules.rule import Deviation, rule
from hybridperf.tasks.registry import accepted_tensors
from hybridperf.untrusted import (
    PREDICTIONS_CAP_BYTES,
    WEIGHTS_CAP_BYTES,
    number,
    open_bounded,
    read_bounded,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.log.package import Result, SealedRun
    from hybridperf.tasks.task import Task

_SOURCE: Final = "HybridPerf rules, section 8"
_PIECE_BYTES: Final = 2**20
_ROUNDING: Final = 1e-9  # of a share that is computed from the same numbers


@rule(
    "run.model",
    scope="run",
    source=f"{_SOURCE}: closed means the task's model",
    remedy="train the model that the task describes, or enter the open division",
)
def model_of_the_task(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """A closed run's final weights are those of the task's model, by name and shape.

    The suite's own predictor has scored them.
    """
    if run.log.value(keys.SUBMISSION_DIVISION) != "closed":
        return
    found, accepted = run.fact("model", "sha256"), accepted_tensors(task)
    if found is not None and accepted and found not in accepted:
        count, values = run.fact("model", "count"), run.fact("model", "values")
        expected = f"tensors with SHA-256 {accepted[0][:12]}..., those of the task's model"
        yield Deviation(expected, f"{count!r:.20} of {values!r:.20} numbers, {found!s:.12}...")
    predictor = run.fact("predictor", "package")
    if predictor is not None and predictor != task.trainer:
        yield Deviation(f"predictions by {task.trainer}", f"by {predictor!r:.60}")


@rule(
    "result.predictions",
    scope="result",
    source=f"{_SOURCE}: predictions of the final model are kept",
    remedy=PUT_BACK,
)
def predictions_kept(result: Result, task: Task) -> Iterator[Deviation]:
    """Predictions that a manifest names are there, and give the quality that it states.

    They are counted where this machine has the task's data, in the edition that the run had.
    """
    for run in result.runs:
        name = run.fact("predictions", "path")
        if name is None:
            continue
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield Deviation("a file beside the log", f"{name!r:.60}", run=run.number)
            continue
        path = result.package.folder / name
        try:
            digest = hashlib.sha256(read_bounded(path, PREDICTIONS_CAP_BYTES)).hexdigest()
        except (OSError, ValueError) as error:
            yield Deviation(f"predictions in {name}", reason(error), run=run.number)
            continue
        if digest != (stated := f"{run.fact('predictions', 'sha256')}"):
            expected = f"{name} with SHA-256 {stated:.12}..."
            yield Deviation(expected, f"{digest[:12]}...", run=run.number)
            continue
        if (labels := labels_here(task, run.fact("data_sha256"))) is None:
            continue
        quality = number(run.fact("rescoring", "quality"), 0, 1)
        try:
            counted = quality_of(read_predictions(path), labels)
        except ValueError as error:
            yield Deviation(f"predictions of {len(labels)} samples", str(error), run=run.number)
            continue
        if quality is None or abs(counted - quality) > _ROUNDING:
            expected = f"the quality {quality!r:.20} that the manifest states"
            yield Deviation(expected, f"{counted:.6f}, counted from {name}", run=run.number)


@rule(
    "result.weights",
    scope="result",
    source=f"{_SOURCE}: weights may be kept too",
    remedy=PUT_BACK,
)
def weights_as_sealed(result: Result, task: Task) -> Iterator[Deviation]:
    """Weights that are kept beside a log have the hashes and tensors that its manifest states."""
    for run in result.runs:
        stated, hashes = run.fact("weights"), run.fact("weights_sha256")
        if not isinstance(stated, list) or not isinstance(hashes, dict):
            continue
        names = [name for name in stated if isinstance(name, str) and NAME.fullmatch(name)]
        paths = [result.package.folder / name for name in names]
        if paths and not any(path.exists() for path in paths):
            continue  # kept elsewhere
        expected = "the weights that the manifest names"
        try:
            digests, tensors = [*map(_sha256, paths)], read_tensors(paths)
        except (OSError, ValueError) as error:
            yield Deviation(expected, reason(error), run=run.number)
            continue
        if len(names) < len(stated) or sorted(digests) != sorted(map(str, hashes.values())):
            yield Deviation(expected, "others", run=run.number)
        elif tensors.sha256 != run.fact("model", "sha256"):
            yield Deviation("the tensors that the manifest states", "others", run=run.number)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_bounded(path, WEIGHTS_CAP_BYTES) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
