"""The seal: an attempt's log and manifest become part of its result, with their hashes."""

from __future__ import annotations

import dataclasses
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.package import MANIFEST_FORMAT, result_names
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock, LogWriter
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.ending import Outcome, without_text
from hybridperf.run.folder import add_hashes, output_file
from hybridperf.run.provenance import code_facts, file_sha256
from hybridperf.run.scratch import remove_folder
from hybridperf.system.privacy import Guard
from hybridperf.tasks.data import check_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf.log.package import Package
    from hybridperf.run.ending import Ending
    from hybridperf.run.rescore import Rescoring
    from hybridperf.run.spec import RunSpec

__all__ = ["Sealed", "remove_irregular_files", "seal"]


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

    ``facts`` are added to the manifest, and the new hashes to ``sealed``: those of log, manifest
    and the predictions that ``facts`` name. After this the attempt's folder is gone.

    Raises:
        OSError: if the disk is full; sealing can then be repeated.
        UserError: exit status 3 if a file that was sealed before has changed.
    """
    guard = Guard.of_this_machine()
    reason = ending.reason if spec.publish_errors else without_text(ending.reason)
    published = dataclasses.replace(ending, reason=guard.redacted(reason))
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
    if isinstance(kept := facts.get("predictions"), dict):
        digests[str(kept["path"])] = str(kept["sha256"])
    add_hashes(package, digests, sealed)
    write_atomically(text, closed)  # the seal: last, so that a sealed attempt is complete
    remove_folder(Path(spec.folder))
    return Sealed(spec.attempt, spec.seed, ending, rescoring, text)


def _closed_log(spec: RunSpec, ending: Ending) -> bytes:
    """Return the log to publish; that of an incomplete run gets an entry with the reason.

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
    """Remove whatever is not a regular file where the harness expects one.

    Through a link the harness would truncate or publish another file; reading a pipe would block.
    Returns a clause that names the replaced files, or ``""`` if there are none. Call it after
    all processes of the run have ended.
    """
    found = []
    for path in _expected_files(spec):
        kind = _kind(path)
        if kind not in {"", "a regular file"}:
            _remove(path)
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink()
