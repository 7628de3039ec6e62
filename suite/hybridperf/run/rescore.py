"""Rescoring: predict with the final weights again, without labels, and compare the quality.

Predictors are forks of one process per run set, the predictor server, which has imported torch:
that import takes most of the processor time of a rescoring. The server imports nothing of the
trainer, so every predictor starts as a new process would. Harness and server exchange packets over
a socket: a JSON object starts a predictor, an empty object ends it, and a number is the exit status
of a predictor that has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import NAME, result_names
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock
from hybridperf.rules.evidence import encoded, quality_of
from hybridperf.run.child import become_module, die_with_parent, import_torch
from hybridperf.run.ending import explain_crash, read_output
from hybridperf.run.evaluation import Shuffle, load_predictions
from hybridperf.run.files import Scratch, remove_folder, write_atomically
from hybridperf.run.launcher import bytecode_folder, predictor_environment, python_command
from hybridperf.run.models import model_mismatch
from hybridperf.run.prediction import INPUTS, PREDICTIONS
from hybridperf.run.processes import StoppedProcesses, adopt_orphans, end_descendants, end_tree
from hybridperf.run.provenance import file_sha256
from hybridperf.run.sandbox import policy_of
from hybridperf.run.spec import RUN_VARIABLE, RunSpec
from hybridperf.system.landlock import Policy, enter_sandbox
from hybridperf.tasks.data import load
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from hybridperf.log.package import Package, SealedRun
    from hybridperf.run.ending import StopRequest
    from hybridperf.tasks.data import Samples

__all__ = [
    "Earlier",
    "PredictorServer",
    "Rescoring",
    "Scoring",
    "find_weights",
    "main",
    "rescore",
    "rescore_sealed",
]

_ENDING_S: Final = 10.0  #: time to end a predictor and all that it started
_PACKET_BYTES: Final = 2**16
_POLL_S = 0.05
# Signals sent from outside: by a user, or by a system that is out of memory.
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class Rescoring:
    """The quality that was reported on the clock, and the quality that rescoring found."""

    reported: float
    quality: float | None  #: None if the model could not be scored
    tolerance: float  #: largest accepted absolute difference of the two
    problem: str = ""  #: why the quality was not reproduced; empty if it was
    earlier: Earlier | None = None  #: rescoring of a model of an evaluation before the last


@dataclass(frozen=True, slots=True)
class Earlier:
    """The quality of a model of an earlier evaluation, which was drawn at random after the run."""

    epoch: int
    reported: float
    quality: float | None  #: None if the model could not be scored


def rescore(spec: RunSpec, server: PredictorServer, stop: StopRequest) -> Rescoring | None:
    """Compute the quality of the final weights and compare it with the last evaluation's.

    Where the harness has the predictions of that evaluation, at most a share of the task's
    tolerance may differ. Where ranks handed over the models of earlier evaluations, the same holds
    for the model that was drawn. Returns None if ``stop`` was requested meanwhile.

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
    trained = keys.progress_text(spec.task().evaluation.metadata(drawn.epoch))
    which = f"of the model of {trained}, which was drawn after the run"
    problem = before.problem and f"{before.problem}, {which}"
    earlier = Earlier(drawn.epoch, before.reported, before.quality)
    return dataclasses.replace(final, problem=problem, earlier=earlier)


def _reported(spec: RunSpec) -> float:
    """Return the quality of the model according to the log."""
    for entry in reversed(read_log(spec.log).all(keys.EVAL_ACCURACY)):
        if spec.epoch in {None, keys.progress_of(entry.metadata)}:
            return float(number(entry.value) or 0.0)
    return 0.0


def _score(spec: RunSpec, server: PredictorServer, stop: StopRequest) -> Rescoring | None:
    """Score the model of ``spec``: the final model, or the model of its epoch; see `rescore`."""
    task, reported = spec.task(), _reported(spec)
    tolerance = task.quality.rescoring_tolerance
    if problem := model_mismatch(spec):
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
    """Make the predictor's folder, with shuffled inputs unless the predictor reads the data."""
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
        classes = load_predictions(spec.scoring / PREDICTIONS)
    except (OSError, ValueError) as error:
        return Rescoring(reported, None, tolerance, f"no predictions: {error}")
    if classes.shape != labels.shape:
        found = f"predictions of shape {classes.shape}, not {labels.shape}"
        return Rescoring(reported, None, tolerance, found)
    if shuffle is not None:
        classes = shuffle.undo(classes)
    write_atomically(spec.final_predictions, encoded(classes))
    again = quality_of(classes, labels)
    problem = "" if abs(again - reported) <= tolerance else "the quality did not come back"
    if not problem and reported >= quality.target > again:
        problem = "the model does not reach the target when it is scored again"
    if not problem and spec.timed_predictions.exists():
        differing = float((load_predictions(spec.timed_predictions) != classes).mean())
        if differing > tolerance:
            which = "the last evaluation" if spec.epoch is None else "its evaluation"
            problem = f"{differing:.2%} of the predictions differ from {which}"
    return Rescoring(reported, again, tolerance, problem)


def find_weights(package: Package, run: SealedRun, elsewhere: Path | None) -> dict[str, Path]:
    """Return the files of a run's published weights by the names of their parts; empty if none.

    They are in the folder of the log, or under the same names in the folder ``elsewhere``.

    Raises:
        UserError: exit status 3 if a file is missing, or has another hash than in the manifest.
    """
    hashes = run.fact("weights_sha256")
    parts = hashes if isinstance(hashes, dict) else {}
    folder = elsewhere or package.folder
    paths = {str(name): folder / f"weights_{run.number}_{name}" for name in parts}
    if elsewhere is None and not any(path.exists() for path in paths.values()):
        return {}
    for name, path in paths.items():
        regular = NAME.fullmatch(name) and path.is_file() and not path.is_symlink()
        found = file_sha256(path) if regular else "no such file"
        if found != parts[name]:
            raise UserError.of(
                "rescore.weights",
                f"weights with SHA-256 {parts[name]!s:.12}...",
                f"{found:.12}",
                "fetch the weights that were published with the result",
                path=str(path),
                exit_code=ExitCode.INVALID,
            )
    return paths


def rescore_sealed(
    package: Package,
    run: SealedRun,
    task: Path,
    trainer: str,
    weights: dict[str, Path],
    server: PredictorServer,
    stop: StopRequest,
) -> Rescoring | None:
    """Rescore a sealed run of the task file ``task`` from its ``weights``.

    ``trainer`` is the package of the predictor; in the closed division it is the task's own.
    Returns None if ``stop`` was requested meanwhile.

    Raises:
        UserError: as `hybridperf.run.rescore.rescore`, and exit status 2 if the manifest
            states no plan.
    """
    with contextlib.closing(Scratch()) as scratch:
        spec = RunSpec(
            folder=str(scratch.path),
            attempt=run.number,
            task_path=str(task),
            trainer=trainer,
            overrides={},  # hyperparameters of training change nothing in how a model predicts
            plan=str(run.fact("plan")),
            seed=0,
            org=package.org,
            platform=package.system,
            division="open" if run.fact("division") == "open" else "closed",
            clock=LogClock(),
        )
        spec.parallel_plan()
        shutil.copyfile(package.folder / result_names(run.number)[0], spec.log)
        spec.weights.mkdir(parents=True)
        for name, path in weights.items():
            shutil.copyfile(path, spec.weights / name)
        spec.write()
        return rescore(spec, server, stop)


class PredictorServer:
    """The harness's handle on the server, which is started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._temporary: Scratch | None = None
        self._spec: RunSpec | None = None  # of the run whose scoring started the server

    def start(self, spec: RunSpec) -> Scoring:
        """Start the predictor of the run ``spec``, which loads the run's final weights."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._launch(spec)
        assert self._socket is not None
        assert self._process is not None
        order = {"path": str(spec.path), "output": str(spec.output), "trainer": spec.predictor}
        if spec.sandboxed:
            readable = (spec.path, spec.weights, bytecode_folder())
            policy = policy_of(spec, writable=(spec.scoring, self._scratch), readable=readable)
            order["policy"] = str(policy.write(self._scratch.parent))
        with contextlib.suppress(OSError):  # it has ended, which `Scoring.poll` notices
            self._socket.send(json.dumps(order).encode())
        return Scoring(self, self._process, self._socket)

    def _launch(self, spec: RunSpec) -> None:
        self._spec = spec
        self._temporary = Scratch()
        self._scratch.mkdir()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, spec.output.open("ab") as output:
            self._process = subprocess.Popen(
                python_command(spec, __name__, spec.predictor),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=predictor_environment(spec, self._scratch),
                cwd=self._scratch if spec.sandboxed else None,
                start_new_session=True,  # Ctrl-C reaches only the harness
            )

    @property
    def _scratch(self) -> Path:
        """Return the folder for temporary files and caches of predictors."""
        assert self._temporary is not None, "made when the server is launched"
        return self._temporary.path / "scratch"

    def close(self) -> None:
        """End the server and all that it started; a later `start` launches another one."""
        if self._socket is None or self._process is None or self._spec is None:
            return
        self._socket.close()  # which tells the server to end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        if self._process.returncode != 0:  # killed, or did not end in time
            end_tree(self._process, self._spec.path)
        if self._temporary is not None:
            self._temporary.close()
        self._process = self._socket = self._temporary = None


class Scoring:
    """A predictor run by the server, with as much of `subprocess.Popen` as supervision needs."""

    def __init__(
        self, owner: PredictorServer, process: subprocess.Popen[bytes], connection: socket.socket
    ) -> None:
        self._owner, self._process, self._socket = owner, process, connection
        self.server = process.pid  #: process id of the predictor's parent
        self.returncode: int | None = None  #: negative signal number if it was killed

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """Return the predictor's exit status, or None if it has not ended within ``timeout_s``."""
        if self.returncode is None and select.select([self._socket], [], [], timeout_s)[0]:
            answer = b""
            with contextlib.suppress(OSError):
                answer = self._socket.recv(_PACKET_BYTES)
            # Without an answer, the server itself has ended.
            self.returncode = int(answer) if answer else self._process.wait() or 1
        return self.returncode

    def end(self) -> None:
        """End the predictor and everything that it started, if it has not ended."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._socket.send(b"{}")
            if self.poll(_ENDING_S) is None:
                self._process.kill()
                self._owner.close()


def main() -> None:
    """Serve the harness at the socket that is this process's standard input, until it closes."""
    # The socket closes when the harness ends; the server then ends what it started before itself.
    die_with_parent(notice=signal.SIGCONT)
    adopt_orphans()
    import_torch(sys.argv[1])
    # Of OpenBLAS's threads, which it stops before a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with socket.socket(fileno=os.dup(0)) as harness:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        while packet := harness.recv(_PACKET_BYTES):
            order = json.loads(packet)
            if not order:
                continue  # the predictor that it asks to end has ended by itself
            predictor = os.fork()
            if predictor == 0:
                harness.close()
                _predict(order)
                return
            status = _await_end(predictor, harness)
            end_descendants()
            with contextlib.suppress(OSError):  # the harness has ended, as the next packet says
                harness.send(b"%d" % status)


def _predict(order: dict[str, Any]) -> None:
    """Run the predictor in this process, which was forked for it."""
    os.setsid()
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if policy := order.get("policy"):
        enter_sandbox(Policy.read(Path(policy)))
    become_module(f"{order['trainer']}.predict", {RUN_VARIABLE: order["path"]})


def _await_end(predictor: int, harness: socket.socket) -> int:
    """Wait for the predictor and return its exit status; kill it if the harness sends a packet."""
    descriptor = os.pidfd_open(predictor)
    ready, _, _ = select.select([descriptor, harness.fileno()], [], [])
    if descriptor not in ready:
        harness.recv(_PACKET_BYTES)
        os.kill(predictor, signal.SIGKILL)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(predictor, 0)[1])


if __name__ == "__main__":
    main()
