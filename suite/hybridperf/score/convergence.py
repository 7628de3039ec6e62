"""Measure how long a run trained, in its benchmark's unit and in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.tasks.mlperf import MlperfBenchmark

__all__ = ["agreed_batch", "amount", "benchmark_of", "count_key", "samples_at", "samples_of"]

_DECIMALS: Final = 3  #: decimals of epochs in reference points and results


def benchmark_of(log: Log | None, folder: str) -> str:
    """Return the benchmark named in ``log``, or ``folder`` if the log names none."""
    named = log.value(keys.SUBMISSION_BENCHMARK) if log else None
    return named if isinstance(named, str) and named else folder


def agreed_batch(logs: Sequence[Log]) -> int | None:
    """Return the global batch size that all ``logs`` state; None if they differ or state none."""
    batches = {whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP) for log in logs}
    return batches.pop() if len(batches) == 1 else None


def count_key(logs: Sequence[Log], name: str, edition: str = "") -> str:
    """Return what counts the progress of ``logs``: metadata of evaluations, or a log key.

    ``name`` is the name of the benchmark, and ``edition`` the round, if known. Some BERT
    submissions log a constant ``epoch_num``; their progress is counted by ``train_samples``.
    """
    benchmark = mlperf_benchmark(name, edition)
    logged = [[entry.metadata for entry in log.all(keys.EVAL_ACCURACY)] for log in logs]
    known = (
        key for key in benchmark.progress if any(key in one for each in logged for one in each)
    )
    key = next(known, next(iter(benchmark.progress)))
    if not benchmark.total:
        return key
    several = any(len(each) > 1 for each in logged)
    constant = len({_count(one.get(key)) for each in logged for one in each}) == 1
    return benchmark.total if several and constant else key


def amount(log: Log, name: str, key: str, edition: str = "") -> float | None:
    """Return the length of a run in its benchmark's unit, as ``key`` counts; None if unknown.

    The length is the progress at the last evaluation or, where several metrics make a target, at
    the first evaluation with all metrics within their bounds.
    """
    benchmark = mlperf_benchmark(name, edition)
    if key == benchmark.total:
        value = log.value(key)
        return _count(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if benchmark.metrics:
        return min(_reached(log, benchmark, key), default=None)
    evaluations = log.all(keys.EVAL_ACCURACY)
    last = _count(evaluations[-1].metadata.get(key)) if evaluations else None
    if last is None or benchmark.progress[key] in {"samples", "steps"}:
        return last
    return round(last, _DECIMALS)


def samples_of(log: Log, name: str, key: str, edition: str = "") -> int | None:
    """Return the number of samples that a run trained on, as ``key`` counts; None if unknown."""
    benchmark = mlperf_benchmark(name, edition)
    if key == benchmark.total or benchmark.metrics:
        length = amount(log, name, key, edition)
        return None if length is None else _samples(length, log, benchmark, key)
    evaluations = log.all(keys.EVAL_ACCURACY)
    return samples_at(log, name, key, evaluations[-1], edition) if evaluations else None


def samples_at(log: Log, name: str, key: str, evaluation: Entry, edition: str = "") -> int | None:
    """Return the number of samples trained on before ``evaluation``; None if unknown."""
    benchmark = mlperf_benchmark(name, edition)
    if key == benchmark.total:
        last = log.all(keys.EVAL_ACCURACY)[-1]
        return samples_of(log, name, key, edition) if evaluation is last else None
    progress = _count(evaluation.metadata.get(key))
    return None if progress is None else _samples(progress, log, benchmark, key)


def _samples(progress: float, log: Log, benchmark: MlperfBenchmark, key: str) -> int | None:
    unit = "samples" if key == benchmark.total else benchmark.progress[key]
    if unit == "samples":
        return int(progress / benchmark.tokens_per_sample)
    batch = _count(log.value(keys.GLOBAL_BATCH_SIZE))
    if unit == "steps":
        return int(progress * batch) if batch else None
    of_epoch = benchmark.epoch_samples or _count(log.value(keys.TRAIN_SAMPLES))
    if not of_epoch:
        return None if unit == "epochs" else 0
    samples = (progress - benchmark.first_epoch) * of_epoch
    if unit == "epochs":
        return int(samples)
    return int(samples // batch * batch) if batch and batch > 0 else 0


def _reached(log: Log, benchmark: MlperfBenchmark, key: str) -> Iterator[float]:
    """Yield the progress of each evaluation that reached the bounds of all metrics."""
    found: dict[float, set[str]] = {}
    for entry in log.all(keys.EVAL_ACCURACY):
        progress, value = _count(entry.metadata.get(key)), number(entry.value)
        metric = entry.metadata.get("metric")
        bounds = benchmark.metrics.get(metric) if isinstance(metric, str) else None
        if progress is None or value is None or bounds is None:
            continue
        if bounds[0] <= value <= bounds[1]:
            found.setdefault(progress, set()).add(str(metric))
    yield from (
        progress for progress, names in found.items() if len(names) == len(benchmark.metrics)
    )


def _count(value: object) -> float | None:
    return number(value, -COUNT_CAP, COUNT_CAP)
