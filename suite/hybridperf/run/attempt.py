"""One attempt, from launch to seal, in steps that each leave a file.

log.txt and run.json (started) -> ending.json (ended) -> result_<n>.json, SHA256SUMS and, last,
result_<n>.txt (rescored and sealed). If the harness is killed in between, the next one continues
from the last file.
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import result_names
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock, LogWriter
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.attempt_files import remove_irregular_files
from hybridperf.run.ending import Ending, Outcome
from hybridperf.run.folder import add_hashes, attempt_folder, output_file
from hybridperf.run.launcher import launch
from hybridperf.run.log_head import write_head
from hybridperf.run.processes import end_processes
from hybridperf.run.provenance import code_facts, file_sha256
from hybridperf.run.rescore import Rescoring, rescore, weights_sha256
from hybridperf.run.resume import reopen, resumable_epoch
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import supervise
from hybridperf.system.privacy import Guard
from hybridperf.tasks.data import check_data
from hybridperf.tasks.schema import build
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from hybridperf.log.package import Package
    from hybridperf.run.coordinator import Coordinator
    from hybridperf.run.signals import StopRequest
    from hybridperf.run.supervise import Observer

__all__ = ["Sealed", "disagreement", "finish", "resume_attempt", "run_attempt"]

_STATUS: Final = {Outcome.SUCCESS: "success", Outcome.TARGET_MISSED: "aborted"}  #: of run_stop


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
        words = "reached the target" if ending.outcome is Outcome.SUCCESS else "missed the target"
        again = ""
        if rescoring is not None and rescoring.quality is not None:
            again = f", {rescoring.reported:.2%}, scored again {rescoring.quality:.2%}"
        return f"{words} in {ending.run_s:.2f} s{again} (seed {self.seed})"


def run_attempt(
    spec: RunSpec,
    package: Package,
    command: str,
    stop: StopRequest,
    observer: Observer,
    peers: Coordinator,
) -> Sealed:
    """Launch, supervise, rescore and seal the run ``spec``.

    Raises:
        UserError: exit status 4 if the predictor was killed, 5 if interrupted while the attempt
            can be resumed or is being rescored.
    """
    Path(spec.folder).mkdir()
    write_head(spec)
    spec.write()  # from here on the attempt exists
    peers.start(spec)
    ending = supervise(launch(spec), spec, stop, observer, peers)
    return _end(spec, package, command, stop, ending, peers)


def resume_attempt(
    spec: RunSpec,
    package: Package,
    command: str,
    stop: StopRequest,
    observer: Observer,
    peers: Coordinator,
    epoch: int,
) -> Sealed:
    """Resume an interrupted attempt from its checkpoint after ``epoch``, and seal it.

    Raises:
        UserError: as `run_attempt`.
    """
    end_processes(spec.path)
    spec = reopen(spec, epoch)
    before = spec.log.stat().st_size
    peers.start(spec)
    ending = supervise(launch(spec), spec, stop, observer, peers, resumed_at=before)
    return _end(spec, package, command, stop, ending, peers)


def _end(
    spec: RunSpec,
    package: Package,
    command: str,
    stop: StopRequest,
    ending: Ending,
    peers: Coordinator,
) -> Sealed:
    """Seal an attempt that has ended, unless it can be resumed.

    Raises:
        UserError: exit status 5 if the attempt was interrupted and can be resumed.
    """
    if problem := remove_irregular_files(spec):
        ending = dataclasses.replace(ending, outcome=Outcome.CRASHED, reason=problem)
    if ending.outcome is Outcome.INTERRUPTED and (epoch := resumable_epoch(spec)) is not None:
        what = f"attempt {spec.attempt} in {package.folder} was {ending.reason} after epoch {epoch}"
        raise UserError(f"{what}; give the same command again to continue.", ExitCode.INTERRUPTED)
    write_atomically(spec.ending, canonical_json(dataclasses.asdict(ending)))
    return _seal(spec, package, command, stop, ending, peers)


def finish(
    package: Package, number: int, command: str, stop: StopRequest, peers: Coordinator
) -> Sealed:
    """Seal an attempt that an earlier harness started, whichever step it has reached.

    If that harness ended before the attempt did, the attempt counts as interrupted. Its files
    count only if the log agrees with them, because the trainer could have written them too.

    Raises:
        UserError: exit status 4 if the predictor was killed, 5 if interrupted while the model is
            rescored; in both cases the attempt is kept.
    """
    folder = attempt_folder(package, number)
    spec = RunSpec.read(folder / "run.json")
    end_processes(spec.path)
    problem = remove_irregular_files(spec) or disagreement(spec, number)
    ending = Ending(Outcome.INTERRUPTED, "the harness was ended")
    if problem:
        ending = Ending(Outcome.CRASHED, problem)
    elif spec.ending.exists():
        ending = _noted_ending(spec)
    return _seal(spec, package, command, stop, ending, peers)


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


def _seal(
    spec: RunSpec,
    package: Package,
    command: str,
    stop: StopRequest,
    ending: Ending,
    peers: Coordinator,
) -> Sealed:
    """Rescore the model, and make the attempt part of its result.

    The sealed log and hashes of weights are those from before the predictor started; if the
    predictor changed any of them, the attempt is refused.
    """
    rescoring, weights = None, weights_sha256(spec)
    if ending.outcome.completed:
        log = spec.log.read_bytes()
        rescoring = rescore(spec, stop)
        problem = remove_irregular_files(spec)
        if rescoring is None:
            what = f"attempt {spec.attempt} in {package.folder} was stopped while its model"
            again = "was scored again; give the same command again to continue."
            raise UserError(f"{what} {again}", ExitCode.INTERRUPTED)
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
    guard = Guard.of_this_machine()
    published = dataclasses.replace(ending, reason=guard.redacted(ending.reason))
    closed = _closed_log(spec, published)
    log_sha256 = sha256(closed).hexdigest()
    if not ending.outcome.completed and spec.output.exists():
        spec.output.replace(output_file(package, spec.attempt))
    text, manifest_file = (package.folder / name for name in result_names(spec.attempt))
    manifest = _manifest(spec, package, published, rescoring, guard.redacted(command))
    nodes = {"nodes": peers.differences} if spec.nodes > 1 else {}
    manifest |= {"log": {"path": text.name, "sha256": log_sha256}, "weights_sha256": weights}
    content = canonical_json(manifest | nodes)
    write_atomically(manifest_file, content)
    digests = {text.name: log_sha256, manifest_file.name: sha256(content).hexdigest()}
    add_hashes(package, digests)
    write_atomically(text, closed)  # the seal: last, so that a sealed attempt is complete
    shutil.rmtree(spec.folder)
    return Sealed(spec.attempt, spec.seed, ending, rescoring, text)


def _closed_log(spec: RunSpec, ending: Ending) -> bytes:
    """Return the log to publish; that of an incomplete run gets an entry with the reason.

    The attempt's own log is not changed, so that sealing can be repeated after a full disk.
    """
    content = spec.log.read_bytes()
    log = read_log(spec.log)
    if ending.outcome.completed or log.first(keys.ENDING) is not None:
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
        "format": 1,
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
        "overrides": spec.overrides,
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
