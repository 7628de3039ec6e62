"""Rules of plausibility: no system computes faster than the peak that its vendor states.

Only what the model needs is counted: work that is done twice, or on padding, makes a run slower
and its share of the peak no higher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.findings import Severity
from suite.logs import keys
from suite.rules.rule import Deviation, rule
from suite.rules.system_rules import whole_number
from suite.scores.convergence import count_key, samples_at
from suite.systems.catalog import find_accelerator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from suite.logs.log import Log
    from suite.logs.package import Result
    from suite.rules.mlperf.ruleset import Benchmark
    from suite.tasks.task import Task

_SOURCE: Final = "HybridPerf rules, section 6: model FLOPs against the vendor's stated peak"
_REMEDY: Final = "check the clock, the sample counts, and the accelerators that are described"
_BACKWARD: Final = 2  # a backward pass takes twice a forward pass's FLOPs
_MOST_NODES: Final = 10**7


@rule("plausible.throughput", scope="mlperf.result", source=_SOURCE, remedy=_REMEDY)
def below_the_peak(
    result: Result,
    benchmark: Benchmark,
    *,
    flops_per_sample: Mapping[str, float],
    formats: Sequence[str],
    warn_above: float,
) -> Iterator[Deviation]:
    """Closed runs keep below the peak of the accelerators described, where that is known."""
    flops = flops_per_sample.get(benchmark.name)
    peak = _peak_flops(result, formats)
    if flops is None or peak is None:
        return
    key = count_key([run.log for run in result.runs], benchmark.name)
    for run in result.runs:
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        # The open division may train another model.
        if evaluation is None or run.log.value(keys.SUBMISSION_DIVISION) != "closed":
            continue
        samples = samples_at(run.log, benchmark.name, key, evaluation)
        yield from _judged(run.log, run.number, flops, samples, peak, warn_above)


@rule("result.plausible", scope="result", source=_SOURCE, remedy=_REMEDY)
def own_below_the_peak(
    result: Result, task: Task, *, formats: Sequence[str], warn_above: float
) -> Iterator[Deviation]:
    """Runs keep below the peak of the accelerators described, where that is known."""
    peak = _peak_flops(result, formats)
    if peak is None:
        return
    for run in result.runs:
        forward = _forward_flops(run.log)
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        if forward is not None and evaluation is not None:
            samples = samples_at(run.log, task.name, "epoch_num", evaluation)
            flops = forward * (1 + _BACKWARD)
            yield from _judged(run.log, run.number, flops, samples, peak, warn_above)


def _judged(
    log: Log,
    number: int,
    flops_per_sample: float,
    samples: int | None,
    peak: tuple[float, str],
    warn_above: float,
) -> Iterator[Deviation]:
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    if start is None or stop is None or stop.time_ms <= start.time_ms or not samples:
        return
    rate = samples / ((stop.time_ms - start.time_ms) / 1000)
    share = rate * flops_per_sample / peak[0]
    if share > warn_above:
        above = share > 1
        most = "at most" if above else f"less than {warn_above:.0%} of"
        yield Deviation(
            f"{most} the {peak[0] / 1e12:,.0f} TFLOP/s that {peak[1]} can compute",
            f"{rate:,.0f} samples/s of {flops_per_sample / 1e9:,.3g} GFLOP, {share:.0%} of it",
            stop.line,
            number,
            severity=None if above else Severity.WARNING,
        )


def _peak_flops(result: Result, formats: Sequence[str]) -> tuple[float, str] | None:
    """Return the peak of all accelerators in the fastest of ``formats``, and their name."""
    system = result.system or {}
    accelerator = find_accelerator(str(system.get("accelerator_model_name", "")))
    nodes = whole_number(system.get("number_of_nodes"))
    each = whole_number(system.get("accelerators_per_node"))
    if accelerator is None or not nodes or not each or not 0 < nodes * each <= _MOST_NODES:
        return None
    peaks = [accelerator.peak_tflops.get(name, 0.0) for name in formats]
    count = nodes * each
    return count * max(peaks, default=0.0) * 1e12, f"{count} {accelerator.name}"


def _forward_flops(log: Log) -> float | None:
    """Return the forward FLOPs of a sample through all stages, where the log states them."""
    stages = log.value(keys.PARTITION)
    if not isinstance(stages, list) or not stages:
        return None
    parts = [
        stage.get("forward_flops_per_sample") if isinstance(stage, dict) else None
        for stage in stages
    ]
    numbers = [part for part in parts if isinstance(part, int | float) and 0 < part < 1e18]
    return float(sum(numbers)) if len(numbers) == len(parts) else None
