"""Rules for hyperparameters, training samples and seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.mlperf.constraints import unmet
from hybridperf.rules.mlperf.ruleset import division
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.rules.mlperf.ruleset import Benchmark


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
