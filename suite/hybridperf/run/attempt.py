"""One attempt, from launch to seal, in steps that each leave a file.

log.txt and run.json (started) -> ending.json (ended) -> result_<n>.json, SHA256SUMS and, last,
result_<n>.txt (rescored and sealed). If the harness is killed in between, the next one continues
from the last file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.hyperparameters import counted_in_steps, named_by_mlperf
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogWriter
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.ending import Ending, Outcome
from hybridperf.run.folder import attempt_folder, output_file
from hybridperf.run.imports import import_facts
from hybridperf.run.kept import keep_model, remove_excess_weights, weights_sha256
from hybridperf.run.launcher import launch
from hybridperf.run.machine import machine_start
from hybridperf.run.processes import end_processes
from hybridperf.run.rank_server import RankServer
from hybridperf.run.rescore import rescore
from hybridperf.run.resume import reopen, resumable_epoch
from hybridperf.run.scratch import remove_folder
from hybridperf.run.seal import Sealed, remove_irregular_files, seal
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import supervise
from hybridperf.tasks.data import drop_from_page_cache
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.schema import build
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.package import Package
    from hybridperf.run.nodes import NodeServer
    from hybridperf.run.predictor_server import PredictorServer
    from hybridperf.run.signals import StopRequest
    from hybridperf.run.supervise import Observer
    from hybridperf.tasks.task import Task

__all__ = ["Attempt", "Surroundings", "disagreement", "write_head"]

_STATUS: Final = {Outcome.SUCCESS: "success", Outcome.TARGET_MISSED: "aborted"}  #: of run_stop


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all attempts of one command share."""

    package: Package
    command: str  #: that makes the result, for the manifest
    stop: StopRequest
    observer: Observer
    peers: NodeServer
    predictors: PredictorServer
    sealed: dict[str, str] = field(default_factory=dict)  #: hashes by file name, of this result


@dataclass(slots=True)
class Attempt:
    """The attempt to make the run ``spec``."""

    spec: RunSpec
    surroundings: Surroundings
    imported: dict[str, str] = field(default_factory=dict)  #: files by names of modules

    @classmethod
    def left_behind(cls, number: int, surroundings: Surroundings) -> Attempt:
        """Return the attempt that an earlier harness started and did not seal.

        Raises:
            UserError: as `RunSpec.read`.
        """
        folder = attempt_folder(surroundings.package, number)
        return cls(RunSpec.read(folder / "run.json"), surroundings)

    def run(self) -> Sealed:
        """Launch, supervise, rescore and seal the run.

        Raises:
            OSError: if the disk is full.
            UserError: exit status 4 if a rank failed before the clock started or the predictor was
                killed, 5 if interrupted while the attempt can be resumed or is being rescored.
        """
        Path(self.spec.folder).mkdir()
        self.spec.work.mkdir()
        write_head(self.spec)
        self.spec.write()  # from here on the attempt exists
        return self._end(self._supervised(resumed_at=0))

    def resume(self, epoch: int, rendezvous: str) -> Sealed:
        """Resume the interrupted run from its checkpoint after ``epoch``, and seal it.

        Raises:
            UserError: as `run`.
        """
        end_processes(self.spec.path)
        self.spec = reopen(dataclasses.replace(self.spec, rendezvous=rendezvous), epoch)
        return self._end(self._supervised(resumed_at=self.spec.log.stat().st_size))

    def finish(self, number: int) -> Sealed:
        """Seal the attempt that an earlier harness started, whichever step it has reached.

        If that harness ended before the attempt did, the attempt counts as interrupted, or as
        failed with the machine if that was started again or its disk was full. Its files count only
        if the log agrees with them, because the trainer could have written them too.

        Raises:
            UserError: exit status 4 if the predictor was killed, 5 if interrupted while the model
                is rescored; in both cases the attempt is kept.
        """
        end_processes(self.spec.path)
        problem = _remove_refused_files(self.spec) or disagreement(self.spec, number)
        ending = Ending(Outcome.INTERRUPTED, "the harness was ended")
        if self.spec.machine_start not in {"", machine_start()}:
            ending = Ending(Outcome.ENVIRONMENT, "the machine was started again")
        if self.spec.disk_full.exists():
            ending = Ending(Outcome.ENVIRONMENT, os.strerror(errno.ENOSPC))
        if problem:
            ending = Ending(Outcome.CRASHED, problem)
        elif self.spec.ending.exists():
            ending = _noted_ending(self.spec)
        self._make_room(ending)
        return self._score_and_seal(ending)

    def _make_room(self, ending: Ending) -> None:
        """Remove what the trainer wrote if the machine failed: it may be what filled the disk."""
        if ending.outcome is Outcome.ENVIRONMENT:
            with contextlib.suppress(OSError):  # it is gone already
                remove_folder(self.spec.work)

    def _supervised(self, resumed_at: int) -> Ending:
        """Run the ranks of all nodes until they end; the log has ``resumed_at`` bytes before."""
        around = self.surroundings
        with self._noting_full_disk(), contextlib.closing(RankServer(self.spec)) as server:
            around.peers.start(self.spec, server.remote_address)
            ending = supervise(
                launch(self.spec, server.address, server.scratch),
                server,
                self.spec,
                around.stop,
                around.observer,
                around.peers,
                resumed_at=resumed_at,
            )
            server.save_models()
        self.imported = server.imported
        return ending

    @contextlib.contextmanager
    def _noting_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                with contextlib.suppress(OSError):  # an empty file needs no space, or hardly any
                    self.spec.disk_full.touch()
            raise

    def _end(self, ending: Ending) -> Sealed:
        """Seal the attempt, which has ended, unless it can be resumed.

        Raises:
            UserError: exit status 4 if a rank failed before the clock started, 5 if the attempt was
                interrupted and can be resumed.
        """
        spec = self.spec
        if problem := _remove_refused_files(spec):
            ending = dataclasses.replace(ending, outcome=Outcome.CRASHED, reason=problem)
        if ending.outcome is Outcome.UNSTARTED:
            raise self._withdrawn(ending.reason)
        if ending.outcome is Outcome.INTERRUPTED and (epoch := resumable_epoch(spec)) is not None:
            what = f"{self._name} was {ending.reason} after epoch {epoch}"
            again = "give the same command again to continue"
            raise UserError(f"{what}; {again}.", ExitCode.INTERRUPTED)
        self._make_room(ending)
        write_atomically(spec.ending, canonical_json(dataclasses.asdict(ending)))
        if self.imported:
            facts = import_facts(self.imported, ("hybridperf", spec.trainer))
            write_atomically(spec.imports, canonical_json(facts))
        return self._score_and_seal(ending)

    def _withdrawn(self, reason: str) -> UserError:
        """Remove the attempt, whose clock did not start, and return the error that says so.

        Nothing is gained by that: the next attempt has the same seed.
        """
        printed = output_file(self.surroundings.package, self.spec.attempt)
        with contextlib.suppress(FileNotFoundError):
            self.spec.output.replace(printed)
        remove_folder(Path(self.spec.folder))
        what = f"{self._name} ended before its clock started, and does not count: {reason}"
        again = "mend that and give the same command again"
        return UserError(
            f"{what}; what the ranks printed is in {printed}; {again}.", ExitCode.ENVIRONMENT
        )

    def _score_and_seal(self, ending: Ending) -> Sealed:
        """Rescore the model, and make the attempt part of its result.

        The sealed log and hashes of weights are those from before the predictor started; if the
        predictor changed any of them, the attempt is refused.
        """
        spec, around = self.spec, self.surroundings
        rescoring, weights = None, weights_sha256(spec)
        if ending.outcome.completed:
            log = spec.log.read_bytes()
            rescoring = rescore(spec, around.predictors, around.stop)
            problem = _remove_refused_files(spec)
            if rescoring is None:
                what = f"{self._name} was stopped while its model was scored again"
                again = "give the same command again to continue"
                raise UserError(f"{what}; {again}.", ExitCode.INTERRUPTED)
            same = spec.log.exists() and spec.log.read_bytes() == log
            if not problem and not (same and weights_sha256(spec) == weights):
                problem = "the predictor changed the log or the weights"
            if problem:
                rescoring = dataclasses.replace(rescoring, problem=problem)
                write_atomically(spec.log, log)
        if rescoring is not None and rescoring.problem:
            ending = dataclasses.replace(ending, outcome=Outcome.REFUSED, reason=rescoring.problem)
        if not spec.log.exists():  # removed as irregular; every sealed attempt has a log
            write_head(spec)
        facts: dict[str, object] = {"weights_sha256": weights}
        if spec.imports.exists():
            facts["imports"] = read_object(spec.imports)
        if ending.outcome.completed:
            facts |= keep_model(spec, around.package)
        if spec.nodes > 1:
            facts["nodes"] = around.peers.differences
        return seal(spec, around.package, around.command, ending, rescoring, facts, around.sealed)

    @property
    def _name(self) -> str:
        return f"attempt {self.spec.attempt} in {self.surroundings.package.folder}"


def _remove_refused_files(spec: RunSpec) -> str:
    """Remove what the trainer wrote and the harness does not read; return what was removed."""
    return remove_irregular_files(spec) or remove_excess_weights(spec)


def write_head(spec: RunSpec) -> None:
    """Write the log's entries known before launch, and start the initialisation interval.

    The data is dropped from the page cache first (MLPerf Training rules 6.1); importing packages
    is part of initialisation.
    """
    task, plan = spec.task(), spec.parallel_plan()
    with LogWriter(spec.log, spec.clock) as log:
        if spec.provenance:
            log.point(keys.ATTEMPT, spec.provenance)
        log.point(keys.SUBMISSION_BENCHMARK, task.name)
        log.point(keys.SUBMISSION_ORG, spec.org)
        log.point(keys.SUBMISSION_DIVISION, spec.division)
        log.point(keys.SUBMISSION_STATUS, "onprem")
        log.point(keys.SUBMISSION_PLATFORM, spec.platform)
        drop_from_page_cache(task.data)
        log.point(keys.CACHE_CLEAR, value=True)
        log.start(keys.INIT_START)
        log.point(keys.TASK, {"name": task.name, "version": task.version, "sha256": task.sha256})
        log.point(keys.MODE, spec.mode)
        log.point(keys.SANDBOX, spec.sandbox)
        log.point(keys.PLAN, str(plan))
        log.point(keys.SEED, spec.seed)
        for key, value in _mlperf_hyperparameters(task).items():
            log.point(key, value)
        log.point(keys.GRADIENT_ACCUMULATION_STEPS, plan.microbatches)
        log.point(keys.MODEL_BN_SPAN, plan.batch_norm_span(task.training.global_batch_size))
        log.point(keys.HYPERPARAMETERS, hyperparameters(task))
        if spec.projection:
            log.point(keys.PROJECTION, spec.projection)


def _mlperf_hyperparameters(task: Task) -> dict[str, object]:
    """Return the task's hyperparameters by MLPerf's keys."""
    table = hyperparameters(task)
    return {
        keys.GLOBAL_BATCH_SIZE: task.training.global_batch_size,
        keys.TRAIN_SAMPLES: task.data.train_samples,
        keys.EVAL_SAMPLES: task.data.eval_samples,
        **named_by_mlperf(table),
        **counted_in_steps(table, task.steps_per_epoch),
    }


def _noted_ending(spec: RunSpec) -> Ending:
    """Return the ending recorded in ending.json if the log agrees with it, else a crash."""
    try:
        ending = build(Ending, read_object(spec.ending), path=str(spec.ending))
    except (OSError, ValueError, UserError):
        return Ending(Outcome.CRASHED, "ending.json was changed: it is not what the harness writes")
    stopped = read_log(spec.log).first(keys.RUN_STOP)
    status = None if stopped is None else stopped.metadata.get("status")
    if ending.outcome.completed and status != _STATUS[ending.outcome]:
        return Ending(Outcome.CRASHED, "ending.json was changed: the log does not end so")
    return ending


def disagreement(spec: RunSpec, number: int) -> str:
    """Return how run.json differs from the head of the log, or ``""`` if they agree."""
    log = read_log(spec.log)
    stated: list[tuple[str, object, object]] = [
        ("attempt", spec.attempt, number),
        ("seed", spec.seed, log.value(keys.SEED)),
        ("plan", spec.plan, log.value(keys.PLAN)),
        ("division", spec.division, log.value(keys.SUBMISSION_DIVISION)),
    ]
    for name, found, expected in stated:
        if found != expected and expected is not None:  # a log may end before its first lines
            return f"run.json was changed: its {name} is not that of the log"
    return ""
