"""Build a reference convergence point from runs of the reference trainer."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.plan import deviations_of
from hybridperf.untrusted import COUNT_CAP, whole

if TYPE_CHECKING:
    from hybridperf.log.package import Result
    from hybridperf.score.score import ResultScore
    from hybridperf.tasks.task import Task

__all__ = ["NewPoint", "new_point", "runs_of_point"]


@dataclass(frozen=True, slots=True)
class NewPoint:
    """A new reference convergence point at one batch size, with its provenance."""

    task: Task
    creator: str
    when: str  #: UTC date of the start of the first run
    software: str
    plan: str
    batch_size: int
    hyperparameters: object
    seeds: tuple[int, ...]
    samples: tuple[int, ...]

    def as_entry(self) -> dict[str, object]:
        """Return the point in MLCommons' JSON schema, with convergence in samples."""
        return {
            f"{self.task.slug}_ref_{self.batch_size}": {
                "Benchmark": self.task.name,
                "Creator": self.creator,
                "When": self.when,
                "Platform": f"{self.software}, {self.plan}",
                "BS": self.batch_size,
                "Hyperparams": self.hyperparameters,
                "Epochs to converge": list(self.samples),
            }
        }

    def as_toml(self) -> str:
        """Return the point as TOML for a task file."""
        lines = {
            "plan": json.dumps(self.plan),
            "software": json.dumps(self.software, ensure_ascii=False),
            "global_batch_size": str(self.batch_size),
            "seeds": str(list(self.seeds)),
            "samples_to_target": str(list(self.samples)),
        }
        return "\n".join(["[reference]", *(f"{key} = {value}" for key, value in lines.items())])


def runs_of_point(task: Task) -> int:
    """Return the number of reference runs per point (MLPerf Training rules, section 13)."""
    return 2 * task.runs.count


def new_point(result: Result, score: ResultScore, task: Task) -> NewPoint:
    """Return the point given by the completed runs of ``result``, with their ``score``.

    Raises:
        UserError: exit status 3 if there are fewer than `runs_of_point` runs, if they differ in
            batch size or belong to another task, if one missed the target, or if the plan is not
            equivalent to one process.
    """
    place = result.package.name
    runs, needed = score.completed, runs_of_point(task)
    logs = {run.number: run.log for run in result.runs}
    if score.benchmark != task.name:
        raise _error(place, f"a result of {task.name}", f"one of {score.benchmark!r:.80}")
    if deviations := deviations_of(score.plan):
        expected, found = "runs that compute what one process does", ", ".join(deviations)
        raise _error(place, expected, found, "make them under another plan")
    if missed := [run.number for run in runs if run.completion == "missed"]:
        raise _error(place, "runs that all reach the target", f"run {missed[0]}, which missed it")
    if len(runs) < needed:
        remedy = "give the command that made them again, with --runs"
        raise _error(
            place, f"{needed} completed runs or more", f"{len(runs)}", f"{remedy} {needed}"
        )
    batches = {repr(logs[run.number].value(keys.GLOBAL_BATCH_SIZE)) for run in runs}
    stated = logs[runs[0].number].value(keys.GLOBAL_BATCH_SIZE)
    batch = whole(stated, 1, COUNT_CAP)
    if len(batches) > 1:
        raise _error(place, "runs of one batch size", f"runs of {', '.join(sorted(batches)):.80}")
    if batch is None:
        raise _error(place, "runs that log their global_batch_size", f"{stated!r:.80}")
    began_s = min(run.began_ms for run in runs) / 1000
    first = result.runs[0]
    return NewPoint(
        task=task,
        creator=visible(score.org),
        when=dt.datetime.fromtimestamp(began_s, dt.UTC).date().isoformat(),
        software=visible(_software(first.fact("code", "version"), result.system or {})),
        plan=visible(score.plan),
        batch_size=batch,
        hyperparameters=logs[runs[0].number].value(keys.HYPERPARAMETERS),
        seeds=tuple(run.seed or 0 for run in runs),
        samples=tuple(run.samples_to_target for run in runs),
    )


def _software(version: object, system: dict[str, object]) -> str:
    """Return the known software versions of the runs."""
    devices = system.get("accelerator_model_name") or system.get("host_processor_model_name")
    parts = (f"HybridPerf {version or 'of an unknown version'}", system.get("framework"), devices)
    return ", ".join(str(part) for part in parts if part)


def _error(
    place: str, expected: str, found: str, remedy: str = "make the runs with 'hybridperf rcp make'"
) -> UserError:
    return UserError.of("rcp.runs", expected, found, remedy, path=place, exit_code=ExitCode.INVALID)
