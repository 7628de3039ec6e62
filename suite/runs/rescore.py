"""Score the final model again, in a fresh process that sees weights and inputs but no labels."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.logs import keys
from suite.logs.reader import read_log
from suite.logs.strict_json import read_bounded
from suite.runs.ending import explain_crash, read_output
from suite.runs.launch import launch_prediction
from suite.runs.processes import end_processes
from suite.tasks.data import load

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec
    from suite.runs.supervise import StopRequest

__all__ = ["Rescoring", "rescore", "weights_sha256"]

_POLL_S = 0.05
_CAP_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Rescoring:
    """What the trainer said of its model, and what the harness found."""

    reported: float
    quality: float | None  #: None where the model could not be scored
    tolerance: float
    problem: str = ""  #: why the quality did not come back; empty where it did


def rescore(spec: RunSpec, stop: StopRequest) -> Rescoring | None:
    """Compare the quality reported at the end with the harness's own; None if told to stop.

    Raises:
        OSError: where the disk is full.
    """
    task = spec.task()
    reported = read_log(spec.log).value(keys.EVAL_ACCURACY)
    reported = float(reported) if isinstance(reported, int | float) else 0.0
    tolerance = task.quality.rescoring_tolerance
    spec.predictions.unlink(missing_ok=True)  # nobody but the predictor answers
    process = launch_prediction(spec)
    deadline_s = time.monotonic() + task.limits.initialisation_s
    try:
        while process.poll() is None:
            if stop.signal is not None:
                return None
            if time.monotonic() > deadline_s:
                problem = f"scoring took more than {task.limits.initialisation_s:g} s"
                return Rescoring(reported, None, tolerance, problem)
            time.sleep(_POLL_S)
    finally:
        end_processes(spec.path)
        process.wait()
    if process.returncode != 0:
        output = read_output(spec.output)
        problem = explain_crash(output, process.returncode)
        if (full := os.strerror(errno.ENOSPC)) in problem:  # no fault of the model
            raise OSError(errno.ENOSPC, full)
        return Rescoring(reported, None, tolerance, problem)
    return _compare(spec, reported, tolerance)


def weights_sha256(spec: RunSpec) -> dict[str, str]:
    """Return the SHA-256 of each file of final weights."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(spec.weights.glob("*.safetensors"))
    }


def _compare(spec: RunSpec, reported: float, tolerance: float) -> Rescoring:
    import numpy as np

    labels = load(spec.task().data).evaluation.labels
    try:
        content = io.BytesIO(read_bounded(spec.predictions, _CAP_BYTES))
        classes = np.lib.format.read_array(content, allow_pickle=False)
    except (OSError, ValueError, MemoryError) as error:
        return Rescoring(reported, None, tolerance, f"no predictions: {error}")
    if classes.shape != labels.shape or classes.dtype.kind not in "iu":
        found = f"predictions of shape {classes.shape} and type {classes.dtype}"
        return Rescoring(reported, None, tolerance, f"{found}, not {labels.shape} integers")
    quality = float((classes == labels).mean())
    problem = "" if abs(quality - reported) <= tolerance else "the quality did not come back"
    return Rescoring(reported, quality, tolerance, problem)
