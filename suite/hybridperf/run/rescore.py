"""Rescoring: evaluate the final weights again in a new process that is given no labels."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.rules.evidence import encoded
from hybridperf.run.atomic import write_atomically
from hybridperf.run.descendants import StoppedProcesses
from hybridperf.run.ending import explain_crash, read_output
from hybridperf.run.evaluation import Shuffle, read_predictions
from hybridperf.run.kept import another_model
from hybridperf.run.prediction import INPUTS, PREDICTIONS
from hybridperf.run.scratch import remove_folder
from hybridperf.run.spec import RunSpec
from hybridperf.tasks.data import load
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from hybridperf.run.predictor_server import PredictorServer
    from hybridperf.run.signals import StopRequest
    from hybridperf.tasks.data import Samples

__all__ = ["Earlier", "Rescoring", "rescore"]

_POLL_S = 0.05
# Signals sent from outside: by a user, or by a system that is out of memory.
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class Rescoring:
    """The quality that the trainer reported and the one that the harness computed."""

    reported: float
    quality: float | None  #: None if the model could not be scored
    tolerance: float  #: largest accepted absolute difference of the two
    problem: str = ""  #: why the quality was not reproduced; empty if it was
    earlier: Earlier | None = None  #: of the model of an evaluation before the last


@dataclass(frozen=True, slots=True)
class Earlier:
    """The quality of a model handed over before the last, drawn at random after the run."""

    epoch: int
    reported: float
    quality: float | None  #: None if the model could not be scored


def rescore(spec: RunSpec, server: PredictorServer, stop: StopRequest) -> Rescoring | None:
    """Compute the quality of the final weights and compare it with the last evaluation's.

    Where the harness has the predictions of that evaluation, the new ones must be the same but for
    a share of the task's tolerance. Where ranks handed over the models of evaluations before, the
    one that was drawn must predict what was predicted then, likewise. Returns None if ``stop`` was
    requested meanwhile.

    Raises:
        OSError: if the disk is full.
        UserError: exit status 4 if the predictor was killed from outside. This is no fault of the
            model: the attempt is kept, and the next command scores it.
    """
    final = _score(spec, server, stop)
    if final is None or final.problem or not spec.earlier.exists():
        return final
    drawn = RunSpec.read(spec.earlier)
    assert drawn.epoch is not None, "the harness wrote it with the epoch"
    before = _score(drawn, server, stop)
    if before is None:
        return None
    which = f"of the model of epoch {drawn.epoch}, which was drawn after the run"
    problem = before.problem and f"{before.problem}, {which}"
    earlier = Earlier(drawn.epoch, before.reported, before.quality)
    return dataclasses.replace(final, problem=problem, earlier=earlier)


def _reported(spec: RunSpec) -> float:
    """Return the quality that the log states of the model."""
    for entry in reversed(read_log(spec.log).all(keys.EVAL_ACCURACY)):
        if spec.epoch in {None, entry.metadata.get("epoch_num")}:
            return float(number(entry.value) or 0.0)
    return 0.0


def _score(spec: RunSpec, server: PredictorServer, stop: StopRequest) -> Rescoring | None:
    """Score the model of ``spec``: the final one, or that of its epoch; see `rescore`."""
    task, reported = spec.task(), _reported(spec)
    tolerance = task.quality.rescoring_tolerance
    if problem := another_model(spec):
        return Rescoring(reported, None, tolerance, problem)
    held_out = load(task.data).evaluation
    shuffle = _prepare(spec, held_out)
    process = server.start(spec)
    stopped = StoppedProcesses(process.server)
    deadline_s = time.monotonic() + task.limits.initialisation_s
    try:
        while process.poll(_POLL_S) is None:
            stopped.look()
            if stop.signal is not None:
                return None
            if time.monotonic() > deadline_s:
                problem = f"scoring took more than {task.limits.initialisation_s:g} s"
                return Rescoring(reported, None, tolerance, problem)
    finally:
        process.end()
    if status := process.poll():
        output = read_output(spec.output)
        problem = explain_crash(output, status)
        if status in _FROM_OUTSIDE:
            again = "the weights are kept; give the same command again to score them"
            what = f"the predictor of attempt {spec.attempt} in {spec.path.parent.parent}"
            killed = f"{what} was killed by {signal.Signals(-status).name}"
            raise UserError(f"{killed}; {again}.", ExitCode.ENVIRONMENT)
        if (full := os.strerror(errno.ENOSPC)) in problem:  # no fault of the model
            raise OSError(errno.ENOSPC, full)
        return Rescoring(reported, None, tolerance, problem)
    return _compare(spec, reported, held_out, shuffle)


def _prepare(spec: RunSpec, held_out: Samples) -> Shuffle | None:
    """Make the predictor's folder, with inputs in an order of their own if it is handed them."""
    import numpy as np

    if spec.scoring.exists():
        remove_folder(spec.scoring)
    spec.scoring.mkdir()
    if spec.mode == "open":  # the predictor reads the data set itself
        return None
    shuffle = Shuffle(len(held_out))
    np.save(spec.scoring / INPUTS, shuffle.apply(held_out.inputs), allow_pickle=False)
    return shuffle


def _compare(
    spec: RunSpec, reported: float, held_out: Samples, shuffle: Shuffle | None
) -> Rescoring:
    quality = spec.task().quality
    tolerance, labels = quality.rescoring_tolerance, held_out.labels
    try:
        classes = read_predictions(spec.scoring / PREDICTIONS)
    except (OSError, ValueError) as error:
        return Rescoring(reported, None, tolerance, f"no predictions: {error}")
    if classes.shape != labels.shape:
        found = f"predictions of shape {classes.shape}, not {labels.shape}"
        return Rescoring(reported, None, tolerance, found)
    if shuffle is not None:
        classes = shuffle.undo(classes)
    write_atomically(spec.final_predictions, encoded(classes))
    again = float((classes == labels).mean())
    problem = "" if abs(again - reported) <= tolerance else "the quality did not come back"
    if not problem and reported >= quality.target > again:
        problem = "the model does not reach the target when it is scored again"
    if not problem and spec.timed_predictions.exists():
        differing = float((read_predictions(spec.timed_predictions) != classes).mean())
        if differing > tolerance:
            which = "the last evaluation" if spec.epoch is None else "its evaluation"
            problem = f"{differing:.2%} of the predictions are not those of {which}"
    return Rescoring(reported, again, tolerance, problem)
