"""Turn runs of the reference trainer into a reference convergence point."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from suite.findings import Finding, visible
from suite.logs import keys
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from suite.logs.package import Result
    from suite.scores.score import ResultScore
    from suite.tasks.task import Task

__all__ = ["NewPoint", "new_point", "runs_of_point"]


@dataclass(frozen=True, slots=True)
class NewPoint:
    """What runs of the reference took to converge at one batch size, and what made them."""

    task: Task
    creator: str
    when: str  #: day on which the first run began, UTC
    software: str
    plan: str
    batch_size: int
    hyperparameters: object
    seeds: tuple[int, ...]
    samples: tuple[int, ...]

    def as_entry(self) -> dict[str, object]:
        """Return the point as the content of a file of MLCommons; ours are counted in samples."""
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
        """Return the point as the lines of a task's file."""
        lines = {
            "plan": json.dumps(self.plan),
            "software": json.dumps(self.software, ensure_ascii=False),
            "global_batch_size": str(self.batch_size),
            "seeds": str(list(self.seeds)),
            "samples_to_target": str(list(self.samples)),
        }
        return "\n".join(["[reference]", *(f"{key} = {value}" for key, value in lines.items())])


def runs_of_point(task: Task) -> int:
    """Return how many runs of the reference make a point (MLPerf Training rules, section 13)."""
    return 2 * task.runs.count


def new_point(result: Result, score: ResultScore, task: Task) -> NewPoint:
    """Return the point that the completed runs of ``result``, whose ``score`` is known, make.

    Raises:
        Refusal: exit status 3 where they are fewer than `runs_of_point`, of another task, of
            several batch sizes, or one missed its target.
    """
    place = result.package.name
    runs, needed = score.completed, runs_of_point(task)
    logs = {run.number: run.log for run in result.runs}
    if score.benchmark != task.name:
        _refuse(place, f"a result of {task.name}", f"one of {score.benchmark!r:.80}")
    if missed := [run.number for run in runs if run.completion == "missed"]:
        _refuse(place, "runs that all reach the target", f"run {missed[0]}, which missed it")
    if len(runs) < needed:
        remedy = "give the command that made them again, with --runs"
        _refuse(place, f"{needed} completed runs or more", f"{len(runs)}", f"{remedy} {needed}")
    batches = {repr(logs[run.number].value(keys.GLOBAL_BATCH_SIZE)) for run in runs}
    batch = logs[runs[0].number].value(keys.GLOBAL_BATCH_SIZE)
    if len(batches) > 1:
        _refuse(place, "runs of one batch size", f"those of {', '.join(sorted(batches)):.80}")
    if type(batch) is not int or batch < 1:
        _refuse(place, "runs that log their global_batch_size", f"{batch!r:.80}")
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
    """Return what the runs were made with, as far as it is known."""
    devices = system.get("accelerator_model_name") or system.get("host_processor_model_name")
    parts = (f"HybridPerf {version or 'of an unknown version'}", system.get("framework"), devices)
    return ", ".join(str(part) for part in parts if part)


def _refuse(
    place: str, expected: str, found: str, remedy: str = "make the runs with 'hybridperf rcp make'"
) -> NoReturn:
    raise Refusal(Finding("rcp.runs", expected, found, remedy, place), ExitCode.INVALID)
