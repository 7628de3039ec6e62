"""How much training a run took: in the unit of its benchmark, and in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from suite.logs import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.logs.log import Entry, Log

__all__ = ["CountKey", "amount", "benchmark_of", "count_key", "samples_at"]

#: what says how far a run got: the evaluation's ``epoch_num``, or ``train_samples`` at the end
CountKey = Literal["epoch_num", "train_samples"]
IN_SAMPLES: Final = frozenset({"bert"})  #: MLPerf's benchmarks whose epoch_num counts samples
IN_EPOCHS: Final = frozenset({"resnet"})  #: whose epochs are whole passes over train_samples
_MOST: Final = 1e15


def benchmark_of(log: Log | None, folder: str) -> str:
    """Return the benchmark that a log names, or else its folder does."""
    named = log.value(keys.SUBMISSION_BENCHMARK) if log else None
    return named if isinstance(named, str) and named else folder


def count_key(logs: Sequence[Log], benchmark: str) -> CountKey:
    """Return which key counts samples: BERT may log 1 as epoch_num of every evaluation."""
    if benchmark not in IN_SAMPLES:
        return "epoch_num"
    numbers = [[_epoch(entry) for entry in log.all(keys.EVAL_ACCURACY)] for log in logs]
    several = any(len(each) > 1 for each in numbers)
    constant = len({number for each in numbers for number in each}) == 1
    return "train_samples" if several and constant else "epoch_num"


def amount(log: Log, key: CountKey) -> float | None:
    """Return what a run took, in epochs or samples as its benchmark counts; None where unknown."""
    if key == "train_samples":
        return _number(log.value(keys.TRAIN_SAMPLES))
    evaluations = log.all(keys.EVAL_ACCURACY)
    return _epoch(evaluations[-1]) if evaluations else None


def samples_at(log: Log, benchmark: str, key: CountKey, evaluation: Entry) -> int | None:
    """Return how many samples had been trained on at ``evaluation``; None where unknown."""
    train, epoch = _number(log.value(keys.TRAIN_SAMPLES)), _epoch(evaluation)
    if key == "train_samples":
        last = log.all(keys.EVAL_ACCURACY)[-1]
        return int(train) if train and evaluation is last else None
    if epoch is None:
        return None
    if benchmark in IN_SAMPLES:
        return int(epoch)
    if benchmark in IN_EPOCHS:
        return int(epoch * train) if train else None
    batch = _number(log.value(keys.GLOBAL_BATCH_SIZE))
    return int(epoch * train // batch * batch) if train and batch and batch > 0 else 0


def _epoch(entry: Entry) -> float | None:
    return _number(entry.metadata.get("epoch_num"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _MOST else None
