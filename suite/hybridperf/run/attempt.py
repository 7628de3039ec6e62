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
import stat
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.keys import counted_in_steps, named_by_mlperf
from hybridperf.log.package import MANIFEST_FORMAT, result_names
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock, LogWriter
from hybridperf.run.elastic import segment_on
from hybridperf.run.ending import Ending, RunOutcome, machine_start, published_reason
from hybridperf.run.files import canonical_json, remove_folder, write_atomically
from hybridperf.run.folder import add_hashes, attempt_folder, output_file
from hybridperf.run.launcher import launch
from hybridperf.run.models import keep_model, remove_excess_weights, weights_sha256
from hybridperf.run.processes import end_processes
from hybridperf.run.provenance import code_facts, file_sha256, import_facts
from hybridperf.run.rank_server import RankServer
from hybridperf.run.rescore import rescore
from hybridperf.run.resume import reopen, resumable_step
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import supervise
from hybridperf.system.noise import NoiseMeter
from hybridperf.system.privacy import Guard
from hybridperf.tasks.data import check_data, drop_from_page_cache
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.schema import build
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf.log.package import Package
    from hybridperf.run.ending import StopRequest
    from hybridperf.run.nodes import NodeServer
    from hybridperf.run.rescore import PredictorServer, Rescoring
    from hybridperf.run.supervise import Observer
    from hybridperf.tasks.task import Task

__all__ = [
    "Attempt",
    "Sealed",
    "Surroundings",
    "disagreement",
    "remove_irregular_files",
    "seal",
    "write_head",
]

_NOISE_S: Final = 0.25  #: least interval before the launch in which noise is measured
#: status of run_stop by outcome
_STATUS: Final = {
    RunOutcome.SUCCESS: "success",
    RunOutcome.TARGET_MISSED: "aborted",
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context that all attempts of one command share."""

    package: Package
    command: str  #: command that makes the result, for the manifest
    stop: StopRequest
    observer: Observer
    peers: NodeServer
    predictors: PredictorServer
    sealed: dict[str, str] = field(default_factory=dict)  #: hashes of the result's files by name


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed attempt, which is part of its result."""

    number: int
    seed: int
    ending: Ending
    rescoring: Rescoring | None
    log: Path

    @property
    def story(self) -> str:
        """Return a one-line summary of how the attempt ended."""
        ending, rescoring = self.ending, self.rescoring
        if not ending.outcome.completed or ending.run_s is None:
            return f"{ending.outcome}: {ending.reason}"
        words = (
            "reached the target" if ending.outcome is RunOutcome.SUCCESS else "missed the target"
        )
        again = ""
        if rescoring is not None and rescoring.quality is not None:
            again = f", {rescoring.reported:.2%}, scored again {rescoring.quality:.2%}"
        return f"{words} in {ending.run_s:.2f} s{again} (seed {self.seed})"


@dataclass(slots=True)
class Attempt:
    """An attempt to make the run ``spec``."""

    spec: RunSpec
    surroundings: Surroundings
    imported: dict[str, str] = field(default_factory=dict)  #: files of the ranks' modules by name

    @classmethod
    def read(cls, number: int, surroundings: Surroundings) -> Attempt:
        """Read the attempt that an earlier harness started and did not seal.

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
        noise = NoiseMeter()
        Path(self.spec.folder).mkdir()
        self.spec.work.mkdir()
        write_head(self.spec)
        with LogWriter(self.spec.log, self.spec.clock) as log:
            log.point(keys.NOISE, noise.read(_NOISE_S).as_table(), interval="before")
        self.spec.write()  # from here on the attempt exists
        return self._end(self._segments(resumed_at=0))

    def resume(self, step: int, rendezvous: str) -> Sealed:
        """Resume the interrupted run from its checkpoint before ``step``, and seal it.

        Raises:
            UserError: as `run`.
        """
        end_processes(self.spec.path)
        self.spec = reopen(dataclasses.replace(self.spec, rendezvous=rendezvous), step)
        return self._end(self._segments(resumed_at=self.spec.log.stat().st_size))

    def finish(self, number: int) -> Sealed:
        """Seal the attempt that an earlier harness started, whichever step it has reached.

        If that harness ended before the attempt did, the attempt counts as interrupted, or as a
        failure of the machine if the machine was restarted or its disk was full. The attempt's
        files count only if the log agrees with them: the trainer could have written them too.

        Raises:
            UserError: exit status 4 if the predictor was killed, 5 if interrupted while the model
                is rescored; in both cases the attempt is kept.
        """
        end_processes(self.spec.path)
        problem = _remove_refused_files(self.spec) or disagreement(self.spec, number)
        ending = Ending(RunOutcome.INTERRUPTED, "the harness was ended")
        if self.spec.machine_start not in {"", machine_start()}:
            ending = Ending(RunOutcome.ENVIRONMENT, "the machine was started again")
        if self.spec.disk_full.exists():
            ending = Ending(RunOutcome.ENVIRONMENT, os.strerror(errno.ENOSPC))
        if problem:
            ending = Ending(RunOutcome.CRASHED, problem)
        elif self.spec.ending.exists():
            ending = _noted_ending(self.spec)
        self._make_room(ending)
        return self._score_and_seal(ending)

    def _make_room(self, ending: Ending) -> None:
        """Remove the trainer's files if the machine failed: they may have filled the disk."""
        if ending.outcome is RunOutcome.ENVIRONMENT:
            with contextlib.suppress(OSError):  # it is gone already
                remove_folder(self.spec.work)

    def _segments(self, resumed_at: int) -> Ending:
        """Run the ranks until the run ends; go on after each loss, and when a node is back.

        ``resumed_at`` is as in `_supervised`.
        """
        ending, stop = self._supervised(resumed_at), self.surroundings.stop
        while (ending.lost or ending.back) and self.spec.elastic is not None:
            if problem := _remove_refused_files(self.spec):
                return dataclasses.replace(ending, outcome=RunOutcome.CRASHED, reason=problem)
            if stop.signal is not None:
                reason = f"stopped by {stop.signal.name}"
                return dataclasses.replace(ending, outcome=RunOutcome.INTERRUPTED, reason=reason)
            if (spec := _next_segment(self.spec, ending, self.surroundings.peers)) is None:
                break
            self.spec = spec
            goes_on = f"goes on from step {spec.resumed} under {spec.parallel_plan()}"
            why = f"lost {ending.lost}" if ending.lost else ending.reason
            self.surroundings.observer.segment(spec.attempt, f"{why}; {goes_on}")
            ending = self._supervised(resumed_at=spec.log.stat().st_size)
        return ending

    def _supervised(self, resumed_at: int) -> Ending:
        """Run the ranks of all nodes until they end; the log has ``resumed_at`` bytes before."""
        around = self.surroundings
        printed = self.spec.output.stat().st_size if self.spec.output.exists() else 0
        with (
            self._noting_full_disk(),
            contextlib.closing(RankServer(self.spec, around.peers)) as server,
        ):
            around.peers.start(self.spec, server.remote_address)
            ending = supervise(
                launch(self.spec, server.address, server.scratch),
                server,
                self.spec,
                around.stop,
                around.observer,
                around.peers,
                resumed_at=resumed_at,
                printed=printed,
            )
            server.save_models()
            server.log_peers_energy()
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
            ending = dataclasses.replace(ending, outcome=RunOutcome.CRASHED, reason=problem)
        if ending.outcome is RunOutcome.UNSTARTED:
            raise self._withdrawn(ending.reason)
        if ending.outcome is RunOutcome.INTERRUPTED and (step := resumable_step(spec)) is not None:
            what = f"{self._name} was {ending.reason} after step {step}"
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

        Nobody gains by it: the next attempt has the same seed.
        """
        printed = output_file(self.surroundings.package, self.spec.attempt)
        with contextlib.suppress(FileNotFoundError):
            self.spec.output.replace(printed)
        remove_folder(Path(self.spec.folder))
        what = f"{self._name} ended before its clock started, and does not count: {reason}"
        again = "mend that and give the same command again"
        return UserError(
            f"{what}; the output of the ranks is in {printed}; {again}.", ExitCode.ENVIRONMENT
        )

    def _score_and_seal(self, ending: Ending) -> Sealed:
        """Rescore the model, and make the attempt part of its result.

        Log and weights are read before the predictor starts; if the predictor changed any of them,
        the attempt is refused.
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
            ending = dataclasses.replace(
                ending, outcome=RunOutcome.REFUSED, reason=rescoring.problem
            )
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


def _next_segment(spec: RunSpec, ending: Ending, peers: NodeServer) -> RunSpec | None:
    """Prepare the run, which has lost a rank or node, or has one back, to go on under another plan.

    Return its new specification; None if it has stopped, or cannot go on. Without a checkpoint it
    begins anew, on the same clock.
    """
    step = resumable_step(spec, from_start=True)
    under = segment_on(peers.left(), spec, 0 if ending.back else spec.plan_number + 1)
    if step is None or under is None:
        return None
    under = dataclasses.replace(under, rendezvous=peers.segment_rendezvous())
    why = published_reason(ending.reason, exceptions=spec.publish_errors)
    return reopen(under, step, ending.lost, why)


def write_head(spec: RunSpec) -> None:
    """Write the log's entries that are known before launch, and start the initialisation interval.

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


def disagreement(spec: RunSpec, number: int) -> str:
    """Return how run.json differs from the head of the log, or ``""`` if they agree."""
    log = read_log(spec.log)
    facts: list[tuple[str, object, object]] = [
        ("attempt", spec.attempt, number),
        ("seed", spec.seed, log.value(keys.SEED)),
        ("plan", spec.plan, log.value(keys.PLAN)),
        ("division", spec.division, log.value(keys.SUBMISSION_DIVISION)),
    ]
    for name, found, expected in facts:
        if found != expected and expected is not None:  # a log may end before its first lines
            return f"run.json was changed: its {name} differs from the log's"
    return ""


def _noted_ending(spec: RunSpec) -> Ending:
    """Return the ending recorded in ending.json if the log agrees with it, else a crash."""
    try:
        ending = build(Ending, read_object(spec.ending), path=str(spec.ending))
    except (OSError, ValueError, UserError):
        return Ending(
            RunOutcome.CRASHED, "ending.json was changed: the harness writes another format"
        )
    stopped = read_log(spec.log).first(keys.RUN_STOP)
    status = None if stopped is None else stopped.metadata.get("status")
    if ending.outcome.completed and status != _STATUS[ending.outcome]:
        return Ending(RunOutcome.CRASHED, "ending.json was changed: the log does not end so")
    return ending


def _remove_refused_files(spec: RunSpec) -> str:
    """Remove irregular and oversized files of the trainer; return a clause that names them."""
    return remove_irregular_files(spec) or remove_excess_weights(spec)


def seal(
    spec: RunSpec,
    package: Package,
    command: str,
    ending: Ending,
    rescoring: Rescoring | None,
    facts: Mapping[str, object],
    sealed: dict[str, str],
) -> Sealed:
    """Make the attempt ``spec``, which has ended, part of the result ``package``.

    ``facts`` are added to the manifest. The hashes of log, manifest and the predictions that
    ``facts`` name are added to ``sealed``. The attempt's folder is removed.

    Raises:
        OSError: if the disk is full; sealing can then be repeated.
        UserError: exit status 3 if a file that was sealed before has changed.
    """
    guard = Guard.of_this_machine()
    reason = published_reason(ending.reason, exceptions=spec.publish_errors)
    published = dataclasses.replace(ending, reason=reason)
    closed = _closed_log(spec, published)
    log_sha256 = sha256(closed).hexdigest()
    if not ending.outcome.completed and spec.output.exists():
        spec.output.replace(output_file(package, spec.attempt))
    text, manifest_file = (package.folder / name for name in result_names(spec.attempt))
    manifest = _manifest(spec, package, published, rescoring, guard.redacted(command))
    manifest |= {"log": {"path": text.name, "sha256": log_sha256}, **facts}
    content = canonical_json(manifest)
    write_atomically(manifest_file, content)
    digests = {text.name: log_sha256, manifest_file.name: sha256(content).hexdigest()}
    if isinstance(predictions := facts.get("predictions"), dict):
        digests[str(predictions["path"])] = str(predictions["sha256"])
    add_hashes(package, digests, sealed)
    write_atomically(text, closed)  # the seal: last, so that a sealed attempt is complete
    remove_folder(Path(spec.folder))
    return Sealed(spec.attempt, spec.seed, ending, rescoring, text)


def _closed_log(spec: RunSpec, ending: Ending) -> bytes:
    """Return the log to publish; the log of an incomplete run gets an entry with the reason.

    The attempt's own log is not changed, so that sealing can be repeated after a full disk.
    """
    content = spec.log.read_bytes()
    if ending.outcome.completed:
        return content
    log = read_log(spec.log)
    if log.first(keys.ENDING) is not None:
        return content
    closed = Path(spec.folder, "closed.txt")
    write_atomically(closed, content)
    clock, last_ms = spec.clock, max((entry.time_ms for entry in log.entries), default=0)
    if clock.now_ms() < last_ms:  # a restart of the machine has reset the monotonic clock
        clock = LogClock(wall_ms=last_ms)
    with LogWriter(closed, clock) as writer:
        writer.point(keys.ENDING, {"outcome": ending.outcome, "reason": ending.reason})
        if log.first(keys.RUN_START) and not log.first(keys.RUN_STOP):
            writer.stop(keys.RUN_STOP, status="aborted")
    return closed.read_bytes()


def _manifest(
    spec: RunSpec, package: Package, ending: Ending, rescoring: Rescoring | None, command: str
) -> dict[str, object]:
    task = spec.task()
    system = package.system_file
    return {
        "format": MANIFEST_FORMAT,
        "attempt": spec.attempt,
        "outcome": ending.outcome,
        "reason": ending.reason,
        "task": {
            "name": task.name,
            "version": task.version,
            "sha256": task.sha256,
            "metric": task.quality.metric,
            "target": task.quality.target,
            "runs": task.runs.count,
        },
        "plan": spec.plan,
        "seed": spec.seed,
        "mode": spec.mode,
        "sandbox": spec.sandbox,
        "overrides": spec.overrides,
        **({"initial": spec.initial.facts} if spec.initial else {}),
        "org": spec.org,
        "platform": spec.platform,
        "division": spec.division,
        "system": {"path": system.name, "sha256": file_sha256(system)},
        "code": code_facts(spec.trainer),
        "data_sha256": check_data(task.data),
        "supervisor": {"initialisation_s": ending.initialisation_s, "run_s": ending.run_s},
        "rescoring": rescoring and dataclasses.asdict(rescoring) | {"problem": ending.reason},
        "command": command,
    }


def remove_irregular_files(spec: RunSpec) -> str:
    """Remove links, pipes and folders where the harness expects regular files.

    Through a link the harness would truncate or publish another file; reading a pipe would block.
    Returns a clause that names the replaced files, or ``""`` if there are none. Call it after
    all processes of the run have ended.
    """
    found = []
    for path in _expected_files(spec):
        kind = _kind(path)
        if kind not in {"", "a regular file"}:
            remove_folder(path) if kind == "a folder" else path.unlink()
            found.append(f"{path.relative_to(spec.folder)}, which is {kind}")
    return f"the trainer replaced {', '.join(found[:3])}" if found else ""


def _expected_files(spec: RunSpec) -> Iterator[Path]:
    """Yield the files that the harness reads or writes."""
    yield from (spec.path, spec.log, spec.timed_predictions, spec.ending)
    for node in range(spec.nodes):
        yield from (spec.output_of(node), spec.pulse_of(node))
    if _kind(spec.weights) == "a folder":
        yield from sorted(spec.weights.iterdir())
    else:
        yield spec.weights


def _kind(path: Path) -> str:
    """Return the kind of file at ``path``, or ``""`` if there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISREG(status.st_mode):
        return "a regular file" if status.st_nlink == 1 else "a file with other names"
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(status.st_mode), "no regular file")
