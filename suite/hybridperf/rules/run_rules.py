"""Rules for one run: format of its log, task, evaluations, target, hyperparameters, manifest."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.log.keys import HYPERPARAMETER_NAMES, counted_in_steps, named_by_mlperf
from hybridperf.log.package import NAME, result_names
from hybridperf.log.segments import last_checkpoint, segments_of
from hybridperf.plan import ParallelPlan, deviations_of
from hybridperf.rules.rule import Deviation, misspelt, rule
from hybridperf.system.energy import Energy
from hybridperf.tasks.overrides import default_hyperparameters, hyperparameters
from hybridperf.tasks.task import Task
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.log.package import SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark

_EDITED: Final = "run again with 'hybridperf run', and never edit a log"
ONE_CLOCK: Final = "stamp every line from one clock that is never adjusted"
USE_A_LOGGER: Final = (
    "log with an MLPerf logger: its start() and end() for intervals, event() for points"
)
#: end of a key -> event type
INTERVAL_EDGES: Final = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
_KNOWN: Final = frozenset(value for value in vars(keys).values() if isinstance(value, str))
_TIMED: Final = frozenset(
    {keys.BLOCK_START, keys.BLOCK_STOP, keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY}
)
_RERUN: Final = "run again with 'hybridperf run', and never edit its results"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@rule(
    "log.keys",
    scope="log",
    source="MLPerf Training 2.1.0, common.yaml: required keys",
    remedy="log every required key as often as the rule says",
)
def required_keys(
    log: Log, task: Task, *, exactly_one: Sequence[str], at_least_one: Sequence[str]
) -> Iterator[Deviation]:
    """Required keys occur as often as they must."""
    counts = Counter(entry.key for entry in log.entries)
    for key in exactly_one:
        if counts[key] != 1:
            found = (
                f"{counts[key]} times" if counts[key] else f"none{misspelt(key, counts, _KNOWN)}"
            )
            yield Deviation(f"{key} exactly once", found)
    for key in at_least_one:
        if not counts[key]:
            yield Deviation(f"{key} at least once", f"none{misspelt(key, counts, _KNOWN)}")


@rule(
    "log.time",
    scope="log",
    source="MLPerf Training rules, section 6: the clock runs without pause",
    remedy=_EDITED,
)
@rule(
    "mlperf.time",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock may not be paused during the run'",
    remedy=ONE_CLOCK,
    severity=Severity.WARNING,
)
def time_runs_forward(
    log: Log, benchmark: Task | Benchmark, *, most_back_ms: int
) -> Iterator[Deviation]:
    """Time stamps go back no further than the processes that write a log may differ."""
    times_ms = [entry.time_ms for entry in log.entries]
    if times_ms == sorted(times_ms):
        return
    latest, worst = None, None
    back_ms = most_back_ms
    for entry in log.entries:
        if latest is None or entry.time_ms >= latest.time_ms:
            latest = entry
        elif latest.time_ms - entry.time_ms > back_ms:
            back_ms, worst = latest.time_ms - entry.time_ms, entry
    if worst is None:
        return
    if alone := _single_outlier(log.entries, most_back_ms):
        entry, off_ms = alone
        found = f"{entry.key!r:.60} alone {off_ms / 1000:+g} s off the lines around it"
        yield Deviation("stamps of one clock on all lines", found, entry.line)
    else:
        found = f"{back_ms / 1000:g} s back at {worst.key!r:.60}"
        most = f"no step back of more than {most_back_ms} ms"
        expected = most if most_back_ms else "time stamps that never decrease"
        yield Deviation(expected, found, worst.line)


def _single_outlier(entries: Sequence[Entry], most_back_ms: int) -> tuple[Entry, int] | None:
    """Return the line without which time runs forward, and how far it is off, if there is one."""
    steps = [
        place
        for place, (one, other) in enumerate(pairwise(entries))
        if one.time_ms - other.time_ms > most_back_ms
    ]
    for place in (steps[0], steps[0] + 1) if len(steps) == 1 else ():
        before, after = entries[max(place - 1, 0)], entries[min(place + 1, len(entries) - 1)]
        if 0 < place < len(entries) - 1 and before.time_ms <= after.time_ms + most_back_ms:
            nearest = before if entries[place].time_ms < before.time_ms else after
            return entries[place], entries[place].time_ms - nearest.time_ms
    return None


@rule(
    "log.intervals",
    scope="log",
    source="HybridPerf rules, section 2: intervals pair and nest",
    remedy=_EDITED,
)
@rule(
    "mlperf.intervals",
    scope="log",
    source="MLPerf logging, mllog: an interval is one line INTERVAL_START and one INTERVAL_END",
    remedy=USE_A_LOGGER,
    severity=Severity.WARNING,
)
def intervals_nest(
    log: Log, benchmark: Task | Benchmark, *, names: Sequence[str]
) -> Iterator[Deviation]:
    """Every interval that starts also stops, and intervals nest.

    Intervals are those of ``names``, whatever their event type; without any, all lines that say so.
    """
    # A run of this suite that was ended leaves intervals open.
    ended = isinstance(benchmark, Task) and log.first(keys.ENDING) is not None
    running: list[tuple[str, int]] = []
    found: dict[tuple[str, str], list[int]] = {}
    open_names: Counter[str] = Counter()
    for entry in _edges(log, names):
        name, _, edge = entry.key.rpartition("_")
        if edge == "start":
            if open_names[name]:
                again = (f"{name}_stop before the next {name}_start", "none")
                found.setdefault(again, []).append(entry.line)
            running.append((name, entry.line))
            open_names[name] += 1
        elif not open_names[name]:
            found.setdefault((f"{name}_start before {name}_stop", "none"), []).append(entry.line)
        else:
            if running[-1][0] != name and not ended:
                crossed = (f"{running[-1][0]}_stop first", f"{name}_stop")
                found.setdefault(crossed, []).append(entry.line)
            while open_names[name]:
                open_names[running.pop()[0]] -= 1
    for name, line in running if not ended else ():
        found.setdefault((f"{name}_stop after {name}_start", "none"), []).append(line)
    for (expected, instead), lines in found.items():
        more = f" in {len(lines)} places" if len(lines) > 1 else ""
        yield Deviation(expected, instead + more, lines[0])


def _edges(log: Log, names: Sequence[str]) -> Iterable[Entry]:
    """Return the lines that start or stop an interval, in file order."""
    if names:
        edges = (
            each for name in names for edge in INTERVAL_EDGES for each in log.all(f"{name}_{edge}")
        )
        return sorted(edges, key=attrgetter("line"))
    edge_of = {key: INTERVAL_EDGES.get(key.rpartition("_")[2], "") for key in log.by_key}
    return (each for each in log.entries if edge_of[each.key] == each.event_type)


@rule(
    "log.order",
    scope="log",
    source="MLPerf Training rules, section 6.1: clear caches, initialise, run",
    remedy=_EDITED,
)
def phases_in_order(log: Log, task: Task) -> Iterator[Deviation]:
    """Caches are cleared, the model is initialised, and the run contains all the rest."""
    order = (keys.CACHE_CLEAR, keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP)
    present = [entry for entry in map(log.first, order) if entry is not None]
    for before, after in pairwise(present):
        if after.line < before.line:
            yield Deviation(f"{before.key} before {after.key}", "the opposite", after.line)
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    for entry in log.entries:
        if entry.key in _TIMED and start and entry.line < start.line:
            yield Deviation(f"{entry.key} after run_start", "before it", entry.line)
        if entry.key in _TIMED and stop and entry.line > stop.line:
            yield Deviation(f"{entry.key} before run_stop", "after it", entry.line)
    clear = log.first(keys.CACHE_CLEAR)
    if clear is not None and clear.value is not True:
        yield Deviation("cache_clear with the value true", repr(clear.value), clear.line)


@rule(
    "log.initialisation",
    scope="log",
    source="MLPerf Training rules, section 6.1: initialisation is bounded; the rest is timed",
    remedy="initialise faster, and start the clock as soon as that is done",
)
def initialisation_bounded(log: Log, task: Task, *, most_gap_s: float) -> Iterator[Deviation]:
    """Initialisation directly follows the cleared caches, keeps its limit, and precedes the run."""
    start, stop = log.first(keys.INIT_START), log.first(keys.INIT_STOP)
    if (
        start
        and stop
        and (took_s := (stop.time_ms - start.time_ms) / 1000)
        > (limit_s := task.limits.initialisation_s)
    ):
        yield Deviation(f"at most {limit_s:g} s of initialisation", f"{took_s:g} s", stop.line)
    for end, next_start in ((keys.CACHE_CLEAR, keys.INIT_START), (keys.INIT_STOP, keys.RUN_START)):
        before, after = log.first(end), log.first(next_start)
        if before and after and (gap_s := (after.time_ms - before.time_ms) / 1000) > most_gap_s:
            expected = f"{next_start} within {most_gap_s:g} s of {end}"
            yield Deviation(expected, f"{gap_s:g} s", after.line)


@rule(
    "log.chain",
    scope="log",
    source="HybridPerf rules, section 2: every line carries the hash of all before it",
    remedy=_EDITED,
)
def hash_chained(log: Log, task: Task) -> Iterator[Deviation]:
    """Every line carries a hash; wrong hashes are found while reading."""
    if not log.chained and not any(each.rule == "log.chain" for each in log.findings):
        yield Deviation("a hash on every line", "none")


@rule(
    "log.energy",
    scope="log",
    source="HybridPerf rules, section 2: each node states the joules of a block once",
    remedy=_EDITED,
)
def energy_is_counted(log: Log, task: Task) -> Iterator[Deviation]:
    """A line of energy has joules of at least 0, a node and a block; none is a repetition."""
    resumed = log.first(keys.RESUMED) is not None  # then what was lost is counted again
    lines = dict[tuple[int, int], int]()
    for entry in log.all(keys.ENERGY):
        if Energy.from_table(entry.value) is None:
            yield Deviation("joules of 0 or more by device", f"{entry.value!r:.80}", entry.line)
        node, nodes = (whole(entry.metadata.get(each), 0) for each in ("node", "nodes"))
        block = keys.progress_of(entry.metadata)
        if node is None or block is None or node >= (nodes or 0):
            found = f"node {node} of {nodes}, {keys.progress_text(entry.metadata)}"
            yield Deviation("one of the nodes, and a block", found, entry.line)
        elif (first := lines.setdefault((node, block), entry.line)) != entry.line and not resumed:
            yield Deviation("a block of a node once", f"it is in line {first} too", entry.line)


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
    """Evaluations follow exactly the epochs, or the samples, of the task's schedule."""
    evaluations = run.log.all(keys.EVAL_ACCURACY)
    blocks = _sized(run, task).blocks()
    for block, entry in zip(blocks, evaluations, strict=False):
        due = block.metadata()
        if any(entry.metadata.get(name) != last for name, last in due.items()):
            expected = f"an evaluation after {keys.progress_text(due)}"
            found = f"after {keys.progress_text(entry.metadata)}"
            yield Deviation(expected, found, entry.line)
            return
    if len(evaluations) > (most := len(blocks)):
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

    The harness states them; where a trainer writes the log itself, they may be missing. Blocks in
    which a run was resumed are judged by `segments_tile_the_run`.
    """
    batch, _, stops = _schedule(run, task)
    begun_within = {id(entry) for entry, _ in _resumed_blocks(run.log, stops)}
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    for entry in run.log.all(keys.BLOCK_STOP):
        steps, samples = entry.metadata.get("steps"), entry.metadata.get("samples")
        left_out = steps is None and run.log.value(keys.MODE) != "sandboxed"
        if left_out or entry.metadata.get("interrupted") is True:
            continue
        counted = whole(steps, 0, COUNT_CAP)
        expected = stops.at(entry)
        judged = closed and expected is not None and id(entry) not in begun_within
        if counted is None:
            yield Deviation("the number of steps in the block", f"{steps!r:.40}", entry.line)
        elif judged and expected is not None and counted != len(expected):
            yield Deviation(f"{len(expected)} steps in the block", f"{counted}", entry.line)
        elif samples != counted * batch:
            expected_samples = f"{counted * batch} samples in {counted} steps"
            yield Deviation(expected_samples, f"{samples!r:.40}", entry.line)


def _sized(run: SealedRun, task: Task) -> Task:
    """Return ``task`` with the global batch size of the run, with which blocks in samples end."""
    logged = run.log.value(keys.HYPERPARAMETERS)
    stated = logged.get("training.global_batch_size") if isinstance(logged, dict) else None
    batch = whole(stated, 1, COUNT_CAP) or task.training.global_batch_size
    return replace(task, training=replace(task.training, global_batch_size=batch))


def _schedule(run: SealedRun, task: Task) -> tuple[int, _Steps, _Steps]:
    """Return the global batch size of the run, and the steps of blocks by their start and stop."""
    sized = _sized(run, task)
    name = "first_epoch_num" if task.evaluation.unit == "epochs" else "samples_count"
    starts, stops = _Steps(name), _Steps(name)
    for block in sized.blocks():
        steps = sized.steps(block)
        starts.of[block.start_metadata()[name]] = stops.of[block.stop_metadata()[name]] = steps
    return sized.training.global_batch_size, starts, stops


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of each block, by what names the block in the metadata of its start or stop."""

    name: str
    of: dict[int, range] = field(default_factory=dict)

    def at(self, entry: Entry) -> range | None:
        """Return the steps of the block of ``entry``; None if the schedule has no such block."""
        number = whole(entry.metadata.get(self.name), 0)
        return None if number is None else self.of.get(number)


def _resumed_blocks(log: Log, due: _Steps) -> Iterator[tuple[Entry, range]]:
    """Yield the first ``block_stop`` of each resumed segment, if it has one, with the steps due."""
    stops = log.all(keys.BLOCK_STOP)
    segments = segments_of(log)[1:]
    ends = [*(segment.line for segment in segments[1:]), math.inf]
    for segment, end in zip(segments, ends, strict=False):
        stop = next((each for each in stops if segment.line < each.line < end), None)
        steps = due.at(stop) if stop else None
        if stop is not None and steps is not None and segment.first_step is not None:
            yield stop, range(max(steps.start, segment.first_step), steps.stop)


@rule(
    "run.segments",
    scope="run",
    source="HybridPerf rules, section 2: every step that the final weights contain is trained once",
    remedy="run again; a trainer goes on with the step before which its checkpoint was saved",
)
def segments_tile_the_run(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """The steps of the segments of a resumed run are all steps of the run, each once.

    A segment begins with the step of the last checkpoint before it, or with the first step. From
    there its ranks have counted as many steps as the schedule has, up to the next checkpoint or
    evaluation. Its plan computes what the plan before it does.
    """
    log = run.log
    if not log.first(keys.RESUMED):
        return
    _, starts, stops = _schedule(run, task)
    for before, segment in pairwise(segments_of(log)):
        if segment.first_step is None:  # of an old harness
            continue
        saved = last_checkpoint([entry for entry in log.entries if entry.line < segment.line]) or 0
        if segment.first_step != saved:
            expected = f"a segment that begins with step {saved}, as its checkpoint does"
            yield Deviation(expected, f"step {segment.first_step}", segment.line)
        one, other = _plan(before.plan), _plan(segment.plan)
        if other is None:
            yield Deviation("the plan of the segment", f"{segment.plan!r:.60}", segment.line)
        elif one is not None and one != other:
            difference = other.difference_from(one, batch_norm=task.parallel.batch_norm)
            if difference:
                expected = f"a segment that computes what {one} does"
                yield Deviation(expected, f"{other}: {difference}", segment.line)
    for entry, due in _resumed_blocks(log, stops):
        steps = entry.metadata.get("steps")
        left_out = steps is None and log.value(keys.MODE) != "sandboxed"
        if left_out or entry.metadata.get("interrupted") is True:
            continue
        if whole(steps, 0, COUNT_CAP) != len(due):
            expected = f"{len(due)} steps from step {due.start} to the end of the block"
            yield Deviation(expected, f"{steps!r:.40}", entry.line)
    yield from _checkpoints_tile(log, starts)


def _checkpoints_tile(log: Log, due: _Steps) -> Iterator[Deviation]:
    """Yield where the steps before a checkpoint within a block are not those that were counted."""
    first_step = first = 0
    for entry in log.entries:
        if entry.key == keys.RESUMED and isinstance(entry.value, dict):
            first_step = whole(entry.value.get("first_step"), 0, COUNT_CAP) or 0
        elif entry.key == keys.BLOCK_START:
            steps = due.at(entry) or range(0)
            first = max(steps.start, first_step)
        elif entry.key == keys.CHECKPOINT and keys.progress_of(entry.metadata) is None:
            step, counted = entry.metadata.get("step"), entry.metadata.get("steps")
            if whole(step, 0, COUNT_CAP) != first + (whole(counted, 0, COUNT_CAP) or 0):
                expected = f"a checkpoint {counted!r:.20} steps after step {first}"
                yield Deviation(expected, f"before step {step!r:.20}", entry.line)


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
        if named is None and mlperf_key not in {*HYPERPARAMETER_NAMES, *counts}:
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


@rule(
    "run.initial",
    scope="run",
    source="HybridPerf rules, section 1: a run begins from the weights that its task states",
    remedy="begin from the weights of the task, or enter the open division",
)
def initial_weights(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Given weights are the task's, and had the stated quality before the clock started."""
    entry, start = run.log.first(keys.INITIAL), run.log.first(keys.RUN_START)
    stated = task.initial
    if entry is None:
        if stated is not None and run.log.first(keys.ENDING) is None:
            yield Deviation(f"an evaluation of weights {stated.sha256[:12]}... first", "none")
        return
    if start is not None and entry.line > start.line:
        yield Deviation(f"{entry.key} before run_start", "after it", entry.line)
    facts = entry.value if isinstance(entry.value, dict) else {}
    digest, quality = facts.get("sha256"), number(facts.get("quality"), 0, 1)
    if run.manifest is not None and (sealed := run.fact("initial", "sha256")) != digest:
        yield Deviation(f"weights {sealed!s:.12}..., as sealed", f"{digest!s:.12}...", entry.line)
    if stated is not None and digest == stated.sha256:
        if quality is None or abs(quality - stated.quality) > stated.tolerance:
            expected = f"a first quality of {stated.quality:g} +- {stated.tolerance:g}"
            yield Deviation(expected, f"{facts.get('quality')!r:.40}", entry.line)
    elif run.log.value(keys.SUBMISSION_DIVISION) == "closed":
        own = "random weights" if stated is None else f"weights {stated.sha256[:12]}..."
        yield Deviation(f"{own} in the closed division", f"{digest!s:.12}...", entry.line)


def _plan(text: object) -> ParallelPlan | None:
    try:
        return ParallelPlan.parse(text) if isinstance(text, str) else None
    except UserError:
        return None
