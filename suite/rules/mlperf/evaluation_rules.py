"""Rules of evaluations: on how many samples, how good, and which of them ends the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.findings import Severity
from suite.logs import keys
from suite.rules.mlperf.values import division, number, whole
from suite.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from suite.logs.log import Log
    from suite.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.accuracy",
    scope="mlperf.log",
    source="MLPerf Training rules, Divisions: targets are '0.720 Mask-LM accuracy' and '75.90% "
    "classification', shares of what was predicted",
    remedy="log accuracy as a number from 0 to 1",
)
def accuracy_is_a_share(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Accuracies are numbers from 0 to 1; the open division may measure something else."""
    for entry in log.all(keys.EVAL_ACCURACY):
        value = number(entry.value)
        if value is None or not 0 <= value <= 1:
            severity = Severity.WARNING if division(log) == "open" else None
            found = f"{entry.value!r:.40}"
            yield Deviation("an accuracy from 0 to 1", found, entry.line, severity=severity)
            return


@rule(
    "mlperf.stop",
    scope="mlperf.log",
    source="MLPerf Training rules, Definitions: 'A run is a complete execution ... training a "
    "model from initialization to the quality target'; Run Results: 'The clock may be stopped as "
    "soon as any part of the system determines target accuracy has been reached'",
    remedy="stop at the first evaluation that reaches the target, and log what came of the run",
)
def target_stopped_the_clock(
    log: Log, benchmark: Benchmark, *, statuses: Sequence[str]
) -> Iterator[Deviation]:
    """A success ends with the evaluation that reached the target, and only a success has one."""
    stop = log.first(keys.RUN_STOP)
    if stop is None:
        return
    status = stop.metadata.get("status")
    if status not in statuses:
        expected = f"run_stop with a status of {', '.join(statuses)}"
        yield Deviation(expected, f"{status!r:.40}", stop.line)
    if division(log) == "open":
        return
    evaluations = log.all(keys.EVAL_ACCURACY)
    accuracies = [number(entry.value) for entry in evaluations]
    reached = [
        place
        for place, accuracy in enumerate(accuracies)
        if accuracy is not None and accuracy >= benchmark.quality
    ]
    if status != "success":
        if reached and status == "aborted":
            found = f"aborted, with {accuracies[reached[0]]:.4f} in line"
            found += f" {evaluations[reached[0]].line}"
            yield Deviation("status success, as the target was reached", found, stop.line)
        return
    if not evaluations or accuracies[-1] is None or accuracies[-1] < benchmark.quality:
        found = f"{evaluations[-1].value!r:.20}" if evaluations else "no evaluation"
        expected = f"the last evaluation to reach {benchmark.quality:g}"
        yield Deviation(expected, found, evaluations[-1].line if evaluations else stop.line)
    if reached and (more := len(evaluations) - 1 - reached[0]):
        expected = "the clock to stop at the first evaluation that reaches the target"
        line = evaluations[reached[0]].line
        yield Deviation(expected, f"{more} more", line, severity=Severity.WARNING)


@rule(
    "mlperf.thoroughness",
    scope="mlperf.log",
    source="MLPerf Training rules, Quality measure, CLOSED: evaluated 'at least as thoroughly (in "
    "terms of number of tests per set) as in the reference implementation'",
    remedy="evaluate on all samples of the evaluation set, and log how many they are",
)
def evaluated_on_all(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Evaluations are on as many samples as the reference evaluates on."""
    for entry in log.all(keys.EVAL_SAMPLES):
        least = 1 if division(log) == "open" else benchmark.eval_samples
        if (whole(entry.value) or 0) < least:
            expected = f"eval_samples of at least {least:,}"
            yield Deviation(expected, f"{entry.value!r:.40}", entry.line)
            return
