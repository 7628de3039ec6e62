"""One attempt, from order to seal, in steps that each leave a file: what was done stays done.

log.txt and run.json (ordered) -> ending.json (ended) -> rescoring.json (scored again)
-> result_<n>.json, SHA256SUMS and, last, result_<n>.txt (sealed). Whatever ends the harness in
between, the next one goes on from the last file.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from suite.logs import keys
from suite.logs.clock import LogClock
from suite.logs.package import result_names
from suite.logs.reader import read_log
from suite.logs.writer import LogWriter
from suite.refusal import ExitCode, Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.runs.ending import Ending, Outcome
from suite.runs.folder import attempt_folder, list_hashes, output_file
from suite.runs.launch import launch, write_head
from suite.runs.processes import end_processes
from suite.runs.provenance import code_facts, file_sha256
from suite.runs.rescore import Rescoring, rescore, weights_sha256
from suite.runs.resume import reopen, resumable_epoch
from suite.runs.spec import RunSpec
from suite.runs.supervise import supervise
from suite.tasks.data import check_data
from suite.tasks.schema import build

if TYPE_CHECKING:
    from suite.logs.package import Package
    from suite.runs.leader import Leader
    from suite.runs.supervise import Observer, StopRequest

__all__ = ["Sealed", "finish", "resume_attempt", "run_attempt"]

Fact = TypeVar("Fact", Ending, Rescoring)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An attempt that has become part of its result."""

    number: int
    seed: int
    ending: Ending
    rescoring: Rescoring | None
    log: Path

    @property
    def story(self) -> str:
        """Return in one line how the attempt ended."""
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
    leader: Leader,
) -> Sealed:
    """Launch, supervise, score again and seal the run that ``spec`` orders."""
    Path(spec.folder).mkdir()
    write_head(spec)
    spec.write()  # from here on the attempt has begun
    leader.go(spec)
    ending = supervise(launch(spec), spec, stop, observer, leader)
    return _end(spec, package, command, stop, ending)


def resume_attempt(
    spec: RunSpec,
    package: Package,
    command: str,
    stop: StopRequest,
    observer: Observer,
    leader: Leader,
    epoch: int,
) -> Sealed:
    """Go on with an interrupted attempt from its checkpoint after ``epoch``, and seal it."""
    end_processes(spec.path)
    spec = reopen(spec, epoch)
    before = spec.log.stat().st_size
    leader.go(spec)
    ending = supervise(launch(spec), spec, stop, observer, leader, resumed_at=before)
    return _end(spec, package, command, stop, ending)


def _end(
    spec: RunSpec, package: Package, command: str, stop: StopRequest, ending: Ending
) -> Sealed:
    """Seal an attempt that has ended; of one that can go on, say so.

    Raises:
        Refusal: exit status 5 where the attempt was interrupted and can go on.
    """
    if ending.outcome is Outcome.INTERRUPTED and (epoch := resumable_epoch(spec)) is not None:
        what = f"attempt {spec.attempt} in {package.folder} was {ending.reason} after epoch {epoch}"
        raise Refusal(f"{what}; give the same command again to go on.", ExitCode.INTERRUPTED)
    _note(spec, "ending.json", ending)
    return finish(package, spec.attempt, command, stop)


def finish(package: Package, number: int, command: str, stop: StopRequest) -> Sealed:
    """Take an attempt that was begun, from wherever it stands, to its seal.

    An attempt whose harness did not live to see it end counts as interrupted.

    Raises:
        Refusal: exit status 5 where told to stop while the model is scored; the attempt stays.
    """
    folder = attempt_folder(package, number)
    spec = RunSpec.read(folder / "run.json")
    end_processes(spec.path)
    ending = _noted(spec, "ending.json", Ending)
    if ending is None:
        ending = Ending(Outcome.INTERRUPTED, "the harness was ended")
    rescoring = _noted(spec, "rescoring.json", Rescoring)
    if rescoring is None and ending.outcome.completed:
        rescoring = rescore(spec, stop)
        if rescoring is None:
            what = (
                f"attempt {number} in {package.folder} was stopped while its model was scored again"
            )
            raise Refusal(f"{what}; give the same command again to go on.", ExitCode.INTERRUPTED)
        _note(spec, "rescoring.json", rescoring)
    if rescoring is not None and rescoring.problem:
        ending = dataclasses.replace(ending, outcome=Outcome.REFUSED, reason=rescoring.problem)
    _close_log(spec, ending)
    if not ending.outcome.completed and spec.output.exists():
        spec.output.replace(output_file(package, number))
    text, manifest = (package.folder / name for name in result_names(number))
    facts = _manifest(spec, package, ending, rescoring, command)
    write_atomically(manifest, canonical_json(facts))
    list_hashes(package, {text.name: file_sha256(spec.log)})
    write_atomically(text, spec.log.read_bytes())  # the seal: from here on the attempt counts
    shutil.rmtree(folder)
    return Sealed(number, spec.seed, ending, rescoring, text)


def _close_log(spec: RunSpec, ending: Ending) -> None:
    """Say in the log why the harness ended the run, and end its run interval."""
    if ending.outcome.completed:
        return
    log = read_log(spec.log)
    if log.first(keys.ENDING) is not None:
        return
    clock, last_ms = spec.clock, max((entry.time_ms for entry in log.entries), default=0)
    if clock.now_ms() < last_ms:  # the machine has started anew, and its monotonic clock with it
        clock = LogClock(wall_ms=last_ms)
    with LogWriter(spec.log, clock) as writer:
        writer.point(keys.ENDING, {"outcome": ending.outcome, "reason": ending.reason})
        if log.first(keys.RUN_START) and not log.first(keys.RUN_STOP):
            writer.stop(keys.RUN_STOP, status="aborted")


def _manifest(
    spec: RunSpec, package: Package, ending: Ending, rescoring: Rescoring | None, command: str
) -> dict[str, object]:
    task = spec.task()
    text, _ = result_names(spec.attempt)
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
        "log": {"path": text, "sha256": file_sha256(spec.log)},
        "system": {"path": system.name, "sha256": file_sha256(system)},
        "code": code_facts(spec.trainer),
        "data_sha256": check_data(task.data),
        "supervisor": {"initialisation_s": ending.initialisation_s, "run_s": ending.run_s},
        "rescoring": None if rescoring is None else dataclasses.asdict(rescoring),
        "weights_sha256": weights_sha256(spec),
        "command": command,
    }


def _note(spec: RunSpec, name: str, fact: Ending | Rescoring) -> None:
    write_atomically(Path(spec.folder, name), canonical_json(dataclasses.asdict(fact)))


def _noted(spec: RunSpec, name: str, cls: type[Fact]) -> Fact | None:
    path = Path(spec.folder, name)
    if not path.exists():
        return None
    return build(cls, json.loads(path.read_text(encoding="utf-8")), path=str(path))
