"""Rules of when evaluations are due, and of how epochs are numbered."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from suite.findings import Severity
from suite.logs import keys
from suite.rules.mlperf.values import division, whole
from suite.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suite.logs.log import Log
    from suite.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.cadence",
    scope="mlperf.log",
    source="MLPerf Training rules, Quality measure, CLOSED: 'The quality measure must be evaluated "
    "at the same frequency (in terms of number of training items between test sets) ... the "
    "required evaluation point may be rounded up to the nearest batch size'",
    remedy="evaluate as often as the benchmark's rule says for this batch size",
)
def evaluation_cadence(
    log: Log, benchmark: Benchmark, *, skipped_steps: int
) -> Iterator[Deviation]:
    """Evaluations are as far apart as the batch size asks for.

    Later by no more than the steps that loss scaling may skip is a warning, since a step that
    changes no weight may not have been counted; so is more often, and anything in the open
    division, which may stop by whatever it likes.
    """
    cadence, batch = benchmark.cadence, whole(log.value(keys.GLOBAL_BATCH_SIZE))
    points = [whole(entry.metadata.get("epoch_num")) for entry in log.all(keys.EVAL_ACCURACY)]
    known = sorted({point for point in points if point is not None})
    if batch is None or batch < 1 or not known or None in points:
        return
    every = cadence.every(batch)
    rounding = batch if cadence.unit == "samples" else 0
    if known[-1] < rounding:  # it counts something else
        yield from _counted(log, len(points), every)
        return
    gaps = [(after - before, after) for before, after in pairwise([0, *known])]
    late = [gap for gap in gaps if gap[0] > every + rounding]
    fixed = gaps[1:] if cadence.any_offset else gaps
    early = [gap for gap in fixed if gap[0] < every - rounding]
    rounded = f" rounded up to batches of {batch:,}" if rounding else ""
    for wrong, worst in ((late, max), (early, min)):
        if wrong:
            gap, point = worst(wrong)
            steps = 1 + skipped_steps
            mild = gap <= every + steps * rounding or division(log) == "open"
            yield Deviation(
                f"an evaluation every {every:,} {cadence.unit}{rounded}",
                f"{gap:,} up to the one at {point:,}, and {len(wrong)} of {len(gaps)} that differ",
                _line_at(log, point),
                severity=Severity.WARNING if mild else None,
            )


def _counted(log: Log, evaluations: int, every: int) -> Iterator[Deviation]:
    """Yield what the number of evaluations tells where their lines do not say when they were."""
    trained = whole(log.value(keys.TRAIN_SAMPLES))
    if trained is None:
        return
    due = trained // every
    if evaluations < due or evaluations > due + 1:
        harmless = evaluations > due or division(log) == "open"
        yield Deviation(
            f"an evaluation every {every:,} samples: {due} in the {trained:,} of train_samples",
            str(evaluations),
            log.all(keys.EVAL_ACCURACY)[-1].line,
            severity=Severity.WARNING if harmless else None,
        )


def _line_at(log: Log, point: int) -> int | None:
    evaluations = log.all(keys.EVAL_ACCURACY)
    return next((e.line for e in evaluations if whole(e.metadata.get("epoch_num")) == point), None)


@rule(
    "mlperf.epochs",
    scope="mlperf.log",
    source="MLPerf Training rules, Epoch numbering: 'Epochs should always be numbered from 1'; "
    "RCPs: 'logs should report epochs as follows', RN50 by epoch, BERT by 'Eval sample (integer)'",
    remedy="number epochs from 1, and give BERT's evaluations the samples trained on as epoch_num",
)
def epochs_count_up(
    log: Log, benchmark: Benchmark, *, numbered: Mapping[str, str]
) -> Iterator[Deviation]:
    """Epochs are whole numbers from 1, and those of evaluations count up."""
    for key, name in numbered.items():
        here = [entry for entry in log.all(key) if name in entry.metadata]
        wrong = [entry for entry in here if (whole(entry.metadata[name]) or 0) < 1]
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
    if benchmark.cadence.unit == "samples" and batch and counted and max(counted)[0] < batch:
        found = f"at most {max(counted)[0]}, with batches of {batch}"
        yield Deviation(
            "epoch_num of eval_accuracy to count samples",
            found,
            counted[-1][1],
            severity=Severity.WARNING,
        )
