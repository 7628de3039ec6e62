"""Rules for one log of a round of MLPerf: its lines, clock, evaluations and hyperparameters."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.mlperf.constraints import unmet
from hybridperf.rules.mlperf.ruleset import division
from hybridperf.rules.rule import Deviation, rule
from hybridperf.rules.run_rules import INTERVAL_EDGES, ONE_CLOCK, USE_A_LOGGER
from hybridperf.score.convergence import count_key
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.ruleset import Benchmark, Due

_SAME: Final = 1e-6  # of a distance in fractions of an epoch
_OTHER_UNIT: Final = 100  # times as far apart as is due: steps or samples in place of epochs
CONTIGUOUS_PERIOD: Final = (
    "MLPerf Training rules, Run Results: a run result is 'a wall-clock timing measurement for a "
    "contiguous period that includes ... quality evaluation'"
)
SUBMIT_AS_WRITTEN: Final = "submit the log of one run on one system, as it was written"


@rule(
    "mlperf.events",
    scope="log",
    source="MLPerf logging, mllog: a line has one of the event types POINT_IN_TIME, "
    "INTERVAL_START and INTERVAL_END, and its metadata names file and lineno",
    remedy=USE_A_LOGGER,
    severity=Severity.WARNING,
)
def events_are_known(
    log: Log, benchmark: Benchmark, *, types: Sequence[str], metadata: Sequence[str]
) -> Iterator[Deviation]:
    """Every line has a known event type and names the line of code that wrote it."""
    if {entry.event_type for entry in log.entries} - set(types):
        unknown = [entry for entry in log.entries if entry.event_type not in types]
        found = f"{unknown[0].event_type!r:.40} and {len(unknown) - 1} more"
        yield Deviation(f"an event_type of {', '.join(types)}", found, unknown[0].line)
    for name in metadata:
        lacking = [entry for entry in log.entries if name not in entry.metadata]
        if lacking:
            found = f"none on {len(lacking)} lines"
            yield Deviation(f"{name} in the metadata of every line", found, lacking[0].line)


@rule(
    "mlperf.edges",
    scope="log",
    source="MLPerf logging, mllog: what starts is logged as INTERVAL_START, what stops as "
    "INTERVAL_END",
    remedy=USE_A_LOGGER,
    severity=Severity.WARNING,
)
def edges_are_intervals(
    log: Log, benchmark: Benchmark, *, names: Sequence[str]
) -> Iterator[Deviation]:
    """Lines that start or stop an interval have the matching event type."""
    for name in names:
        for edge, event_type in INTERVAL_EDGES.items():
            other = [e for e in log.all(f"{name}_{edge}") if e.event_type != event_type]
            if other:
                found = f"{other[0].event_type!r:.40}"
                yield Deviation(f"{name}_{edge} as {event_type}", found, other[0].line)


@rule(
    "mlperf.clock",
    scope="log",
    source="MLPerf Training rules, Run Results: a run result is 'a wall-clock timing measurement "
    "for a contiguous period'",
    remedy=ONE_CLOCK,
)
def clock_runs_forward(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Initialisation, start and stop have increasing time stamps."""
    order = (keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP)
    present = [entry for entry in map(log.first, order) if entry is not None]
    for before, after in pairwise(present):
        if after.time_ms < before.time_ms:
            back_s = (before.time_ms - after.time_ms) / 1000
            expected = f"{after.key} after {before.key} by the clock"
            yield Deviation(expected, f"{back_s:g} s before it", after.line)


@rule(
    "mlperf.one_run",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock may not be paused during the run'",
    remedy="log one run into one file",
)
def one_run(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """The clock starts once and stops once, also on lines without a value."""
    for key in (keys.RUN_START, keys.RUN_STOP):
        if len(here := log.all(key)) > 1:
            yield Deviation(f"{key} once", f"{len(here)} times", here[1].line)


@rule(
    "mlperf.timed",
    scope="log",
    source="MLPerf Training rules, Run Results: the period 'includes ... using the dataset to "
    "train the model, and quality evaluation'; 'the clock must start before any part of the system "
    "touches the dataset'",
    remedy="start the clock before training, and stop it after the evaluation that ends the run",
)
def training_is_timed(
    log: Log,
    benchmark: Benchmark,
    *,
    training: Sequence[str],
    evaluation: Sequence[str],
    evaluated_later: Sequence[str],
    most_apart_ms: int,
) -> Iterator[Deviation]:
    """Training begins and evaluations happen within the run, in the file and by the clock.

    A run may continue to train while its checkpoints are evaluated, so training may end late, and
    so may an evaluation that has no accuracy. Checkpoints of some benchmarks are evaluated later.
    """
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    for key in (*training, *evaluation):
        here = log.all(key)
        if start is not None:
            yield from _outside([e for e in here if e.line < start.line], "after run_start")
            earliest_ms = start.time_ms - most_apart_ms
            early = [e for e in here if e.line > start.line and e.time_ms < earliest_ms]
            yield from _outside(early, "after run_start by the clock")
        if stop is not None:
            mild = key != keys.EVAL_ACCURACY or benchmark.name in evaluated_later
            severity = Severity.WARNING if mild else Severity.ERROR
            after = [e for e in here if e.line > stop.line]
            yield from _outside(after, "before run_stop", severity)
            latest_ms = stop.time_ms + most_apart_ms
            late = [e for e in here if e.line < stop.line and e.time_ms > latest_ms]
            yield from _outside(late, "before run_stop by the clock", severity)


@rule(
    "mlperf.untimed",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock must start ... when the maximum model "
    "initialization time is exceeded'",
    remedy="start the clock as soon as initialisation is done",
)
def clock_starts_in_time(
    log: Log, benchmark: Benchmark, *, most_minutes: Mapping[str, float], most_gap_s: float
) -> Iterator[Deviation]:
    """The clock starts within the limit of initialisation, and soon after initialisation ends.

    No rule states how soon: a gap within the limit is a warning.
    """
    begin, end, start = map(log.first, (keys.INIT_START, keys.INIT_STOP, keys.RUN_START))
    division = log.value(keys.SUBMISSION_DIVISION)
    limit = most_minutes.get(division) if isinstance(division, str) else None
    if begin and start and limit is not None:
        minutes = (start.time_ms - begin.time_ms) / 60_000
        if minutes > limit:
            expected = f"run_start within {limit:g} min of init_start"
            yield Deviation(expected, f"{minutes:.1f} min", start.line)
    if end and start and (gap_s := (start.time_ms - end.time_ms) / 1000) > most_gap_s:
        expected = f"run_start within {most_gap_s:g} s of init_stop"
        yield Deviation(expected, f"{gap_s:g} s", start.line, severity=Severity.WARNING)


@rule(
    "mlperf.milliseconds",
    scope="log",
    source="MLPerf logging (mllog): time_ms is the Unix time in milliseconds",
    remedy="log milliseconds since 1970, not seconds",
)
def times_are_in_milliseconds(
    log: Log, benchmark: Benchmark, *, earliest_ms: int, latest_ms: int
) -> Iterator[Deviation]:
    """Time stamps are of a year in which MLPerf existed."""
    start = log.first(keys.RUN_START)
    if start is not None and not earliest_ms <= start.time_ms <= latest_ms:
        expected = f"run_start with time_ms from {earliest_ms} to {latest_ms}"
        yield Deviation(expected, str(start.time_ms), start.line)


@rule(
    "mlperf.cache",
    scope="log",
    source="MLPerf Training rules, Data State at Start of Run: 'You must flush the cache or "
    "restart the system prior to benchmarking'",
    remedy="clear the caches just before init_start, and log cache_clear with the value true",
)
def caches_cleared(
    log: Log, benchmark: Benchmark, *, most_minutes_before: float
) -> Iterator[Deviation]:
    """Caches are cleared before the run; warn if during or long before initialisation."""
    clears = log.all(keys.CACHE_CLEAR)
    begin, start = log.first(keys.INIT_START), log.first(keys.RUN_START)
    for entry in clears:
        if entry.value is not True:
            unclear = entry.value is None or entry.value in ("True", "true")
            severity = Severity.WARNING if unclear else Severity.ERROR
            found = f"{entry.value!r:.40}"
            yield Deviation("cache_clear with the value true", found, entry.line, severity=severity)
            break
    for clear in clears:
        if start and clear.time_ms > start.time_ms:
            yield Deviation("cache_clear before run_start", "after it", clear.line)
            break
        if begin and clear.line > begin.line:  # another process may have written it earlier
            found, severity = "after it", Severity.WARNING
            yield Deviation("cache_clear before init_start", found, clear.line, severity=severity)
            break
    if clears and begin:
        minutes = (begin.time_ms - max(clear.time_ms for clear in clears)) / 60_000
        if minutes > most_minutes_before:
            expected = f"cache_clear at most {most_minutes_before:g} min before init_start"
            found, line = f"{minutes:.0f} min", clears[-1].line
            yield Deviation(expected, found, line, severity=Severity.WARNING)


def _outside(
    entries: list[Entry], expected: str, severity: Severity = Severity.ERROR
) -> Iterator[Deviation]:
    if entries:
        first = entries[0]
        times = f" on {len(entries)} lines" if len(entries) > 1 else ""
        yield Deviation(
            f"{first.key} {expected}", f"the opposite{times}", first.line, severity=severity
        )


@rule(
    "mlperf.accuracy",
    scope="log",
    source="MLPerf Training rules, Divisions: targets are '0.720 Mask-LM accuracy' and '75.90% "
    "classification', shares of what was predicted",
    remedy="log accuracy as a number from 0 to 1",
)
def accuracy_is_a_share(
    log: Log, benchmark: Benchmark, *, shares: Sequence[str]
) -> Iterator[Deviation]:
    """Accuracies are numbers from 0 to 1; the open division may measure something else."""
    if benchmark.name not in shares:
        return
    for entry in log.all(keys.EVAL_ACCURACY):
        value = number(entry.value)
        if value is None or not 0 <= value <= 1:
            severity = Severity.WARNING if division(log) == "open" else None
            found = f"{entry.value!r:.40}"
            yield Deviation("an accuracy from 0 to 1", found, entry.line, severity=severity)
            return


@rule(
    "mlperf.stop",
    scope="log",
    source="MLPerf Training rules, Definitions: 'A run is a complete execution ... training a "
    "model from initialization to the quality target'; Run Results: 'The clock may be stopped as "
    "soon as any part of the system determines target accuracy has been reached'",
    remedy="stop at the first evaluation that reaches the target, and log the status of the run",
)
def target_stopped_the_clock(
    log: Log, benchmark: Benchmark, *, statuses: Sequence[str], evaluated_later: Sequence[str]
) -> Iterator[Deviation]:
    """A success, and only a success, ends with an evaluation that reached the target.

    Benchmarks that evaluate checkpoints after the run may log evaluations in any order.
    """
    stop = log.first(keys.RUN_STOP)
    if stop is None:
        return
    status = stop.metadata.get("status")
    if status not in statuses:
        expected = f"run_stop with a status of {', '.join(statuses)}"
        severity = Severity.ERROR if status is None else Severity.WARNING
        yield Deviation(expected, f"{status!r:.40}", stop.line, severity=severity)
    if division(log) == "open":
        return
    evaluations = benchmark.evaluations(log)
    reached = [
        place for place, each in enumerate(evaluations) if benchmark.reached_by(each.value, log)
    ]
    if status != "success":
        if reached and status == "aborted":
            first = evaluations[reached[0]]
            found = f"aborted, with {first.value!r:.80} in line {first.line}"
            yield Deviation("status success, as the target was reached", found, stop.line)
        return
    if reached and benchmark.name in evaluated_later:
        return
    if not evaluations or not benchmark.reached_by(evaluations[-1].value, log):
        found = f"{evaluations[-1].value!r:.80}" if evaluations else "no evaluation"
        expected = f"the last evaluation to be {benchmark.target_in_words}"
        yield Deviation(expected, found, evaluations[-1].line if evaluations else stop.line)
    if reached and (more := len(evaluations) - 1 - reached[0]):
        expected = "the clock to stop at the first evaluation that reaches the target"
        line = evaluations[reached[0]].line
        yield Deviation(expected, f"{more} more", line, severity=Severity.WARNING)


@rule(
    "mlperf.thoroughness",
    scope="log",
    source="MLPerf Training rules, Quality measure, CLOSED: evaluated 'at least as thoroughly (in "
    "terms of number of tests per set) as in the reference implementation'",
    remedy="evaluate on all samples of the evaluation set, and log how many they are",
)
def evaluated_on_all(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Evaluations use as many samples as the reference's."""
    for entry in log.all(keys.EVAL_SAMPLES):
        least = 1 if division(log) == "open" else benchmark.eval_samples or 1
        if (_only(entry.value) or 0) < least:
            expected = f"eval_samples of at least {least:,}"
            yield Deviation(expected, f"{entry.value!r:.40}", entry.line)
            return


def _only(value: object) -> int | None:
    """Return ``value``, or the one item of a list, as int if it is whole."""
    return whole(value[0] if isinstance(value, list) and len(value) == 1 else value)


@rule(
    "mlperf.cadence",
    scope="log",
    source="MLPerf Training rules, Quality measure, CLOSED: 'The quality measure must be evaluated "
    "at the same frequency (in terms of number of training items between test sets) ... the "
    "required evaluation point may be rounded up to the nearest batch size'; BERT: every "
    "0.05 * (230.23 * batch size + 3,000,000) samples, rounded down to a multiple of 25,000",
    remedy="evaluate as often as the benchmark's rule says for this batch size",
)
def evaluation_cadence(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Evaluations are as far apart as the batch size requires.

    As far apart as the formula says before it is rounded down is a warning; so are as many
    evaluations as are due, one of them late; more often; a hundred times as far, which counts
    something else; and anything in the open division, which may stop by whatever it likes.
    """
    cadence, batch = benchmark.cadence, whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
    due = None if cadence is None or batch is None else cadence.due(batch)
    if cadence is None or batch is None or due is None:
        return
    evaluations = benchmark.evaluations(log)
    points = [number(entry.metadata.get(cadence.by)) for entry in evaluations]
    known = sorted({float(point) for point in points if point is not None})
    if not known or None in points:
        return
    if cadence.total and known[-1] < due.rounding:  # another unit
        yield from _counted(log, cadence.total, len(points), int(due.every))
        return
    gaps, off = _gaps(known, due), due.rounding + _SAME * due.every
    late = [each for each in gaps if each[0] > each[1] + off]
    fixed = gaps[1:] if cadence.first_earlier else gaps
    early = [each for each in fixed if each[0] < each[1] - off]
    rounded = f" rounded up to batches of {batch:,}" if due.rounding else ""
    for wrong, worst in ((late, max), (early, min)):
        if not wrong:
            continue
        gap, _, point = worst(wrong, key=lambda each: each[0] - each[1])
        near = all(
            gap <= (due.near_first if point == known[0] else due.near) + due.rounding
            for gap, _, point in wrong
        )
        asked = math.floor((known[-1] - due.first) / due.every + _SAME) + 1
        enough = due.rounding and len(known) >= asked
        other_unit = min(gap for gap, _, _ in gaps) > _OTHER_UNIT * due.every
        mild = near or enough or other_unit or division(log) == "open"
        first = f", and the first at {due.first:,.12g}" if due.first != due.every else ""
        yield Deviation(
            f"an evaluation every {due.every:,.12g} {cadence.unit}{rounded}{first}",
            f"{gap:,.12g} up to the one at {point:,.12g}, and {len(wrong)} of {len(known)} "
            "that differ",
            _line_at(evaluations, cadence.by, point),
            severity=Severity.WARNING if mild else None,
        )


def _gaps(known: Sequence[float], due: Due) -> list[tuple[float, float, float]]:
    """Return the distance of each evaluation from the one before, what it should be, and where."""
    asked = [due.first, *(due.every for _ in known[1:])]
    return [
        (after - before, wanted, after)
        for (before, after), wanted in zip(pairwise([0.0, *known]), asked, strict=True)
    ]


def _counted(log: Log, total: str, evaluations: int, every: int) -> Iterator[Deviation]:
    """Check the number of evaluations if their lines do not state the epoch or sample count."""
    trained = whole(log.value(total))
    if trained is None:
        return
    due = trained // every
    if evaluations < due or evaluations > due + 1:
        harmless = evaluations > due or division(log) == "open"
        yield Deviation(
            f"an evaluation every {every:,} samples: {due} in the {trained:,} of {total}",
            str(evaluations),
            log.all(keys.EVAL_ACCURACY)[-1].line,
            severity=Severity.WARNING if harmless else None,
        )


def _line_at(evaluations: Sequence[Entry], by: str, point: float) -> int | None:
    return next((e.line for e in evaluations if number(e.metadata.get(by)) == point), None)


@rule(
    "mlperf.epochs",
    scope="log",
    source="MLPerf Training rules, Epoch numbering: 'Epochs should always be numbered from 1'; "
    "RCPs: 'logs should report epochs as follows', RN50 by epoch, BERT by 'Eval sample (integer)'",
    remedy="number epochs from 1, and give BERT's evaluations the samples trained on as epoch_num",
)
def epochs_count_up(
    log: Log, benchmark: Benchmark, *, numbered: Mapping[str, str], fractions: Sequence[str]
) -> Iterator[Deviation]:
    """Epochs are whole numbers from 1, and those of evaluations increase.

    Benchmarks that are evaluated several times within an epoch number them in ``fractions``.
    """
    for key, name in numbered.items() if benchmark.name not in fractions else ():
        here = [entry for entry in log.all(key) if name in entry.metadata]
        # Nearly all are: `whole` of every line would take a twentieth of the time of a round.
        odd = [each for each in here if type(n := each.metadata[name]) is not int or n < 1]
        wrong = [entry for entry in odd if (whole(entry.metadata[name]) or 0) < 1]
        none = [entry for entry in wrong if whole(entry.metadata[name]) != 0]
        if wrong:
            first = (none or wrong)[0]
            found = f"{first.metadata[name]!r:.40} on {len(wrong)} of {len(here)} lines"
            yield Deviation(
                f"{name} of {key} to be a whole number from 1",
                found,
                first.line,
                severity=None if none else Severity.WARNING,
            )
    counted = [
        (point, entry.line)
        for entry in log.all(keys.EVAL_ACCURACY)
        if (point := whole(entry.metadata.get("epoch_num"))) is not None
    ]
    for (before, _), (after, line) in pairwise(counted):
        if after < before:
            yield Deviation("epoch_num of evaluations to count up", f"{after} after {before}", line)
            break
    batch = whole(log.value(keys.GLOBAL_BATCH_SIZE))
    if benchmark.counts_samples and batch and counted and max(counted)[0] < batch:
        found = f"at most {max(counted)[0]}, with batches of {batch}"
        yield Deviation(
            "epoch_num of eval_accuracy to count samples",
            found,
            counted[-1][1],
            severity=Severity.WARNING,
        )


@rule("mlperf.evaluation_time", scope="log", source=CONTIGUOUS_PERIOD, remedy=SUBMIT_AS_WRITTEN)
def evaluations_take_time(
    log: Log,
    benchmark: Benchmark,
    *,
    least_share: Mapping[str, float],
    least_of_run: float,
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """Evaluations take time: each of them, a share of the median of the run's, and all of the run.

    Shares of the median below those of ``least_share`` are an error or a warning; in the open
    division a warning. Benchmarks whose checkpoints are evaluated later may log all of it at once.
    """
    spans = () if benchmark.name in evaluated_later else _spans(log)
    if not spans:
        return
    usual = median(span for span, _ in spans)
    shortest, line = min(spans)
    if shortest <= 0:
        yield Deviation("an evaluation to take time", f"{shortest / 1000:g} s", line)
    elif shortest < least_share["warning"] * usual:
        mild = shortest >= least_share["error"] * usual or division(log) == "open"
        yield Deviation(
            f"evaluations of about {usual / 1000:g} s, as the run's others are",
            f"{shortest / 1000:g} s",
            line,
            severity=Severity.WARNING if mild else None,
        )
    elif (whole_ms := run_ms(log)) and sum(span for span, _ in spans) < least_of_run * whole_ms:
        share = sum(span for span, _ in spans) / whole_ms
        expected = f"evaluations that take {least_of_run:.2%} of the run or more"
        yield Deviation(expected, f"{share:.4%}", line)


def run_ms(log: Log) -> int:
    """Return the time from run_start to run_stop; 0 if unknown."""
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    return max(stop.time_ms - start.time_ms, 0) if start and stop else 0


def _spans(log: Log) -> list[tuple[int, int]]:
    """Return the time of each evaluation and the line it stops in, if starts and stops pair."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if len(starts) != len(stops):
        return []
    return [
        (stop.time_ms - start.time_ms, stop.line) for start, stop in zip(starts, stops, strict=True)
    ]


@rule("mlperf.training_time", scope="log", source=CONTIGUOUS_PERIOD, remedy=SUBMIT_AS_WRITTEN)
def training_takes_time(
    log: Log,
    benchmark: Benchmark,
    *,
    least: int,
    least_share: Mapping[str, float],
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """What is trained between two evaluations takes a share of what as much takes in the median.

    Runs of fewer than ``least`` intervals are not looked at. In the open division, where the model
    may change on the way, it is a warning.
    """
    if benchmark.name in evaluated_later:
        return
    by = count_key([log], benchmark.name, benchmark.edition)
    first: dict[float, Entry] = {}
    for entry in benchmark.evaluations(log):
        if (point := number(entry.metadata.get(by), 0, COUNT_CAP)) is not None:
            first.setdefault(float(point), entry)
    paces = [
        ((first[after].time_ms - first[before].time_ms) / (after - before), first[after])
        for before, after in pairwise(sorted(first))
    ]
    if len(paces) < least:
        return
    usual = median(pace for pace, _ in paces)
    shortest, entry = min(paces, key=lambda each: each[0])
    if shortest < least_share["warning"] * usual:
        mild = shortest >= least_share["error"] * usual or division(log) == "open"
        yield Deviation(
            "as much training in about as much time as between the run's other evaluations",
            f"{shortest / usual:.1%} of it",
            entry.line,
            severity=Severity.WARNING if mild else None,
        )


@rule(
    "mlperf.hyperparameters",
    scope="log",
    source="MLPerf Training rules, Hyperparameters, CLOSED: 'The value of each tunable "
    "hyperparameter must meet the listed constraint'",
    remedy="train with a value that the table of hyperparameters allows, and log it",
)
def constraints_met(
    log: Log, benchmark: Benchmark, *, constraint: Sequence[Mapping[str, Any]]
) -> Iterator[Deviation]:
    """Values meet the constraints on hyperparameters that the official checker omits."""
    batch = whole(log.value(keys.GLOBAL_BATCH_SIZE))
    for each in constraint:
        if "batch_below" in each and (batch is None or batch >= each["batch_below"]):
            continue
        if any(log.value(key) != value for key, value in each["when"].items()):
            continue
        for key, asked in each["keys"].items():
            wrong = [entry for entry in log.all(key) if unmet(asked, entry.value)]
            if wrong:
                expected = f"{key} {unmet(asked, wrong[0].value)}"
                yield Deviation(expected, f"{wrong[0].value!r:.40}", wrong[0].line)


@rule(
    "mlperf.train_samples",
    scope="log",
    source="MLPerf Training rules, Training Data Order, CLOSED: 'each datum still appears exactly "
    "once'; Appendix, Bert: train_samples is 'the number of samples to converge'",
    remedy="train on the whole training set, and log how many samples it was",
)
def trained_on_all(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """The number of training samples is whole, and the training set's where it is fixed."""
    for entry in log.all(keys.TRAIN_SAMPLES):
        listed = isinstance(entry.value, list) and len(entry.value) == 1
        value = whole(entry.value[0] if isinstance(entry.value, list) and listed else entry.value)
        fixed = None if division(log) == "open" else benchmark.train_samples
        if value is None or value < 1 or fixed not in {None, value}:
            expected = "a whole number of at least 1" if fixed is None else f"{fixed:,}"
            batch = whole(log.value(keys.GLOBAL_BATCH_SIZE), 1)
            # Batches of an epoch without the rest that fills none.
            mild = None not in (value, fixed, batch) and value == fixed // batch * batch  # type: ignore[operator]  # no None
            yield Deviation(
                f"train_samples = {expected}",
                f"{entry.value!r:.40}",
                entry.line,
                severity=Severity.WARNING if mild else None,
            )
            return


@rule(
    "mlperf.seed",
    scope="log",
    source="MLPerf Training rules, Random numbers, CLOSED: 'Random number generators must be "
    "seeded from' clock, system or another generator; only 'from v4.1 onwards, the seeds should "
    "be logged' as one integer",
    remedy="log the one seed of the run as a whole number",
    severity=Severity.WARNING,
)
def seed_logged(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """A run of the closed division logs one seed, a whole number."""
    seeds = log.all(keys.SEED)
    if division(log) == "open":
        return
    if not seeds:
        yield Deviation("a seed", "none")
    for entry in seeds:
        if whole(entry.value) is None:
            yield Deviation("a seed that is a whole number", f"{entry.value!r:.40}", entry.line)
            break
    if len(values := {whole(entry.value) for entry in seeds}) > 1:
        yield Deviation("one seed", f"{len(values)}", seeds[1].line)
