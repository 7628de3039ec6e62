"""Rules for evaluations: samples, accuracy, final evaluation, cadence and epochs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.mlperf.ruleset import division
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.cadence import Due
    from hybridperf.rules.mlperf.ruleset import Benchmark

_SAME: Final = 1e-6  # of a distance in fractions of an epoch
_OTHER_UNIT: Final = 100  # times as far apart as is due: steps or samples in place of epochs


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
