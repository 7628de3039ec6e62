"""Measure how long a run trained, in its benchmark's unit and in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hybridperf.log import keys
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.untrusted import COUNT_CAP, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.log.log import Entry, Log

__all__ = ["CountKey", "amount", "benchmark_of", "count_key", "samples_at"]

#: the log key that gives training progress: ``epoch_num`` of each evaluation, or the final
#: ``train_samples``
CountKey = Literal["epoch_num", "train_samples"]


def benchmark_of(log: Log | None, folder: str) -> str:
    """Return the benchmark named in ``log``, or ``folder`` if the log names none."""
    named = log.value(keys.SUBMISSION_BENCHMARK) if log else None
    return named if isinstance(named, str) and named else folder


def count_key(logs: Sequence[Log], benchmark: str) -> CountKey:
    """Return the log key that counts the training samples of a benchmark.

    Some BERT submissions log a constant ``epoch_num``; ``train_samples`` is used for those.
    """
    if mlperf_benchmark(benchmark).epoch_num != "samples":
        return "epoch_num"
    numbers = [[_epoch(entry) for entry in log.all(keys.EVAL_ACCURACY)] for log in logs]
    several = any(len(each) > 1 for each in numbers)
    constant = len({number for each in numbers for number in each}) == 1
    return "train_samples" if several and constant else "epoch_num"


def amount(log: Log, key: CountKey) -> float | None:
    """Return the length of a run in its benchmark's unit, epochs or samples; None if unknown."""
    if key == "train_samples":
        return _count(log.value(keys.TRAIN_SAMPLES))
    evaluations = log.all(keys.EVAL_ACCURACY)
    return _epoch(evaluations[-1]) if evaluations else None


def samples_at(log: Log, benchmark: str, key: CountKey, evaluation: Entry) -> int | None:
    """Return the number of samples trained on before ``evaluation``; None if unknown."""
    train, epoch = _count(log.value(keys.TRAIN_SAMPLES)), _epoch(evaluation)
    if key == "train_samples":
        last = log.all(keys.EVAL_ACCURACY)[-1]
        return int(train) if train and evaluation is last else None
    if epoch is None:
        return None
    counted = mlperf_benchmark(benchmark).epoch_num
    if counted == "samples":
        return int(epoch)
    if counted == "epochs":
        return int(epoch * train) if train else None
    batch = _count(log.value(keys.GLOBAL_BATCH_SIZE))
    return int(epoch * train // batch * batch) if train and batch and batch > 0 else 0


def _epoch(entry: Entry) -> float | None:
    return _count(entry.metadata.get("epoch_num"))


def _count(value: object) -> float | None:
    return number(value, -COUNT_CAP, COUNT_CAP)
