"""Rules for one run: task, evaluations, target, hyperparameters and manifest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.log import keys
from hybridperf.log.hyperparameters import NAMES, counted_in_steps, named_by_mlperf
from hybridperf.log.package import NAME, result_names
from hybridperf.plan import ParallelPlan, deviations_of
from hybridperf.rules.rule import Deviation, rule
from hybridperf.tasks.overrides import default_hyperparameters, hyperparameters
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.package import SealedRun
    from hybridperf.tasks.task import Task

_RERUN: Final = "run again with 'hybridperf run', and never edit its results"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@rule(
    "run.task",
    scope="run",
    source="HybridPerf rules, section 1: results compare only within one version of a task",
    remedy="run the task as this version of the suite states it",
)
def same_task(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The log names the task's version and the hash of its file."""
    entry = run.log.first(keys.TASK)
    stated = {"name": task.name, "version": task.version, "sha256": task.sha256}
    if entry is not None and entry.value != stated:
        found = entry.value if isinstance(entry.value, dict) else {}
        version, digest = found.get("version"), str(found.get("sha256"))[:12]
        yield Deviation(
            f"version {task.version} with SHA-256 {task.sha256[:12]}...",
            f"version {version!r:.20} with SHA-256 {digest}...",
            entry.line,
        )


@rule(
    "run.cadence",
    scope="run",
    source="MLPerf Training rules, section 9: evaluation at the stated frequency",
    remedy="evaluate exactly when the task's schedule says",
)
def evaluations_on_schedule(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Evaluations follow exactly the epochs of the task's schedule."""
    evaluations = run.log.all(keys.EVAL_ACCURACY)
    for block, entry in zip(task.blocks(), evaluations, strict=False):
        if entry.metadata.get("epoch_num") != block.last_epoch:
            found = f"after epoch {entry.metadata.get('epoch_num')!r:.20}"
            yield Deviation(f"an evaluation after epoch {block.last_epoch}", found, entry.line)
            return
    if len(evaluations) > (most := len(task.blocks())):
        yield Deviation(
            f"at most {most} evaluations", str(len(evaluations)), evaluations[most].line
        )
    stop = run.log.first(keys.RUN_STOP)
    if stop and stop.metadata.get("status") == "aborted" and len(evaluations) < most:
        yield Deviation(f"{most} evaluations before giving up", str(len(evaluations)), stop.line)


@rule(
    "run.steps",
    scope="run",
    source="MLPerf Training rules, section 9: a closed run follows the schedule of its task",
    remedy="train on every batch of every block, or enter the open division",
)
def steps_of_the_schedule(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Blocks of closed runs have as many steps and samples as the task's schedule.

    The harness states them; where a trainer writes the log itself, they may be missing.
    """
    logged = run.log.value(keys.HYPERPARAMETERS)
    stated = logged.get("training.global_batch_size") if isinstance(logged, dict) else None
    batch = whole(stated, 1, COUNT_CAP) or task.training.global_batch_size
    sized = replace(task, training=replace(task.training, global_batch_size=batch))
    due = {block.first_epoch: len(sized.steps(block)) for block in sized.blocks()}
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    for entry in run.log.all(keys.BLOCK_STOP):
        steps, samples = entry.metadata.get("steps"), entry.metadata.get("samples")
        left_out = steps is None and run.log.value(keys.MODE) != "sandboxed"
        if left_out or entry.metadata.get("interrupted") is True:
            continue
        counted = whole(steps, 0, COUNT_CAP)
        expected = due.get(whole(entry.metadata.get("first_epoch_num"), 1) or 0)
        if counted is None:
            yield Deviation("the number of steps in the block", f"{steps!r:.40}", entry.line)
        elif closed and expected is not None and counted != expected:
            yield Deviation(f"{expected} steps in the block", f"{counted}", entry.line)
        elif samples != counted * batch:
            expected_samples = f"{counted * batch} samples in {counted} steps"
            yield Deviation(expected_samples, f"{samples!r:.40}", entry.line)


@rule(
    "run.target",
    scope="run",
    source="MLPerf Training rules, section 6: the run stops when the target is reached",
    remedy=_RERUN,
)
def target_at_the_stop(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The last evaluation of a success is the first that reaches the target."""
    target = task.quality.target
    evaluations = run.log.all(keys.EVAL_ACCURACY)
    stop = run.log.first(keys.RUN_STOP)
    for entry in evaluations:
        if number(entry.value, 0, 1) is None:
            yield Deviation(
                "a quality from 0 to 1, not in per cent", f"{entry.value!r:.40}", entry.line
            )
            return
    reached = [entry for entry in evaluations if number(entry.value, target) is not None]
    status = stop.metadata.get("status") if stop else None
    if stop and status not in {"success", "aborted"}:
        yield Deviation("run_stop with status success or aborted", f"{status!r:.40}", stop.line)
    if stop and status == "success" and not reached:
        best = max((number(entry.value) or 0.0 for entry in evaluations), default=0.0)
        yield Deviation(f"quality {target:g} at the stop", f"at best {best:.4f}", stop.line)
    if reached and reached[0] is not evaluations[-1]:
        yield Deviation(
            "a stop at the first evaluation that reaches the target",
            "a later one",
            evaluations[-1].line,
        )
    if stop and status == "aborted" and reached and run.log.first(keys.ENDING) is None:
        yield Deviation("status success, as the target was reached", "aborted", stop.line)


@rule(
    "run.hyperparameters",
    scope="run",
    source="MLPerf Training rules, section 8: the closed division's table of hyperparameters",
    remedy="keep to the task's bounds, or enter the open division",
)
def closed_hyperparameters(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """MLPerf's keys agree with ours; closed runs keep the task's bounds."""
    entry = run.log.first(keys.HYPERPARAMETERS)
    if entry is None:
        return
    logged = default_hyperparameters() | (entry.value if isinstance(entry.value, dict) else {})
    counts = {
        keys.TRAIN_SAMPLES: task.data.train_samples,
        keys.EVAL_SAMPLES: task.data.eval_samples,
    }
    for mlperf_key, value in (named_by_mlperf(logged) | counts).items():
        named = run.log.first(mlperf_key)
        if named is None and mlperf_key not in {*NAMES, *counts}:
            continue  # older logs lack optimiser-specific keys
        if not _same(found := run.log.value(mlperf_key), value):
            line = named.line if named else None
            yield Deviation(f"{mlperf_key} = {value!r:.40}", f"{found!r:.40}", line)
    if run.log.value(keys.SUBMISSION_DIVISION) != "closed":
        return
    for key, reference in hyperparameters(task).items():
        value, bound = logged.get(key), task.closed.get(key)
        if _same(value, reference):
            continue
        if bound is None:
            yield Deviation(f"{key} = {reference!r}", f"{value!r:.40}", entry.line)
        elif (changed := number(value)) is None or not bound.admits(changed):
            yield Deviation(f"{key} to be {bound}", f"{value!r:.40}", entry.line)


@rule(
    "run.manifest",
    scope="run",
    source="HybridPerf rules, section 3: a manifest with hashes seals every attempt",
    remedy="restore log and manifest byte for byte, line endings included, or run again",
)
def manifest_matches(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The manifest exists and describes this log."""
    if run.manifest is None:
        yield Deviation("a manifest beside the log", "none")
        return
    if run.fact("log", "sha256") != run.log.sha256:
        digest = f"{run.fact('log', 'sha256')!s:.12}"
        expected = f"the log that was sealed, with SHA-256 {digest}..."
        yield Deviation(expected, f"another, with {run.log.sha256[:12]}...")
    log_path, system_path = run.fact("log", "path"), run.fact("system", "path")
    if log_path != (name := result_names(run.number)[0]):
        yield Deviation(f"{name} as the log's path", f"{log_path!r:.60}")
    if not isinstance(system_path, str) or not NAME.fullmatch(system_path):
        yield Deviation("a file in systems/ as the system's path", f"{system_path!r:.60}")
    sealed = {
        "attempt": run.number,
        "outcome": _outcome(run),
        "plan": run.log.value(keys.PLAN),
        "seed": run.log.value(keys.SEED),
        "org": run.log.value(keys.SUBMISSION_ORG),
        "platform": run.log.value(keys.SUBMISSION_PLATFORM),
        "division": run.log.value(keys.SUBMISSION_DIVISION),
        "mode": run.log.value(keys.MODE),  # none in older logs and manifests
        "sandbox": run.log.value(keys.SANDBOX),
    }
    for key, value in sealed.items():
        if not _same(run.fact(key), value):
            yield Deviation(f"{key} {run.fact(key)!r:.60}, as the manifest says", f"{value!r:.60}")
    ran = run.log.value(keys.TASK)
    facts = {**(ran if isinstance(ran, dict) else {}), **_facts(task)}
    for key, value in facts.items():
        if not _same(run.fact("task", key), value):
            yield Deviation(f"{value!r:.60} as the task's {key}", f"{run.fact('task', key)!r:.60}")
    data = run.fact("data_sha256")
    if task.data.editions is None and data != task.data.sha256:
        yield Deviation(f"data with SHA-256 {task.data.sha256[:12]}...", f"{data!s:.12}...")
    elif not isinstance(data, str) or not _SHA256.fullmatch(data):
        yield Deviation("the SHA-256 of the data, whichever edition it was", f"{data!r:.60}")


@rule(
    "run.clocks",
    scope="run",
    source="HybridPerf rules, section 2: the log's clock agrees with the supervisor's own",
    remedy=_RERUN,
)
def clocks_agree(
    run: SealedRun, task: Task, *, tolerance_s: float, tolerance_share: float
) -> Iterator[Deviation]:
    """The harness's clock and the log's agree on the run's time."""
    start, stop = run.log.first(keys.RUN_START), run.log.first(keys.RUN_STOP)
    measured = run.fact("supervisor", "run_s")
    if run.manifest is None or start is None or stop is None or run.log.first(keys.ENDING):
        return
    logged_s = (stop.time_ms - start.time_ms) / 1000
    if (supervisor_s := number(measured)) is None:
        yield Deviation("the run time that the supervisor measured", f"{measured!r:.40}")
    elif abs(logged_s - supervisor_s) > tolerance_s + tolerance_share * supervisor_s:
        expected = f"{supervisor_s:.2f} s from run_start to run_stop, as the supervisor measured"
        yield Deviation(expected, f"{logged_s:.2f} s", stop.line)


@rule(
    "run.rescoring",
    scope="run",
    source="HybridPerf rules, section 3: the harness scores the final model again",
    remedy="make the trainer save the model that it evaluates, and run again",
)
def quality_came_back(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The harness's own score of a completed run's model agrees with the log's quality."""
    if run.manifest is None:
        return
    tolerance, stated = task.quality.rescoring_tolerance, run.log.value(keys.EVAL_ACCURACY)
    quality = run.fact("rescoring", "quality")
    found, reported = number(quality), number(stated)
    if found is None:
        yield Deviation("a quality from scoring the model again", f"{quality!r:.40}")
    elif reported is None or abs(found - reported) > tolerance:
        yield Deviation(
            f"quality {stated!r:.20} +- {tolerance:g} when scored again", f"{found:.4f}"
        )


def _same(found: object, value: object) -> bool:
    """Tell whether two values are equal, without treating 1 and True as equal."""
    return isinstance(found, bool) == isinstance(value, bool) and found == value


def _facts(task: Task) -> dict[str, object]:
    """Return the task fields of a manifest other than name, version and hash."""
    quality = task.quality
    return {"metric": quality.metric, "target": quality.target, "runs": task.runs.count}


def _outcome(run: SealedRun) -> object:
    """Return the outcome stated in the log."""
    ending, stop = run.log.first(keys.ENDING), run.log.first(keys.RUN_STOP)
    if ending is not None:
        return ending.value.get("outcome") if isinstance(ending.value, dict) else None
    status = stop.metadata.get("status") if stop else None
    return {"success": "success", "aborted": "target_missed"}.get(str(status))


@rule(
    "run.derived",
    scope="run",
    source="HybridPerf rules, section 2: MLPerf's keys have MLPerf's meaning",
    remedy="run again with 'hybridperf run', which logs what follows from task and plan",
)
def derived_values_fit(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Schedule steps, gradient accumulation and BatchNorm's span follow from task and plan."""
    logged = run.log.value(keys.HYPERPARAMETERS)
    table = default_hyperparameters() | (logged if isinstance(logged, dict) else {})
    batch = whole(table.get("training.global_batch_size"), 1, COUNT_CAP)
    plan = _plan(run.log.value(keys.PLAN))
    follows: dict[str, float] = {}
    if batch:
        follows |= counted_in_steps(table, task.data.train_samples / batch)
    if plan is not None:
        follows[keys.GRADIENT_ACCUMULATION_STEPS] = plan.microbatches
        if batch:
            follows[keys.MODEL_BN_SPAN] = plan.batch_norm_span(batch)
    for key, value in follows.items():
        entry = run.log.first(key)
        if entry is not None and (isinstance(entry.value, bool) or entry.value != value):
            yield Deviation(f"{key} = {value}", f"{entry.value!r:.40}", entry.line)


@rule(
    "run.plan",
    scope="run",
    source="HybridPerf rules, section 1: closed plans compute what one process does",
    remedy="train under a plan without it, or enter the open division",
)
def closed_plan(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The plan of a closed run computes what one process does, up to the order of sums."""
    entry = run.log.first(keys.PLAN)
    if entry is None or run.log.value(keys.SUBMISSION_DIVISION) != "closed":
        return
    if (deviations := deviations_of(entry.value)) is None:
        yield Deviation("a plan, such as dp=2,pp=2", f"{entry.value!r:.60}", entry.line)
    elif deviations:
        expected = "a plan that computes what one process does, in the closed division"
        yield Deviation(expected, ",".join(deviations), entry.line)


def _plan(text: object) -> ParallelPlan | None:
    try:
        return ParallelPlan.parse(text) if isinstance(text, str) else None
    except UserError:
        return None
