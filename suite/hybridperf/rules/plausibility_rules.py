"""Rules for plausibility: no system exceeds the peak throughput stated by its vendor.

Only model FLOPs are counted, without recomputation and padding, by tables of the suite's own: no
result's word is taken for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.plan import ParallelPlan
from hybridperf.projection.units import load_units
from hybridperf.rules.rule import Deviation, rule
from hybridperf.score.convergence import count_key, samples_at
from hybridperf.system.catalog import (
    accelerator_count,
    accelerators_per_node,
    device_count,
    find_accelerator,
)
from hybridperf.tasks.registry import accepted_tensors, find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result, SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark
    from hybridperf.tasks.task import Task

_SOURCE: Final = "HybridPerf rules, section 6: model FLOPs against the vendor's stated peak"
_REMEDY: Final = "check the clock, the sample counts, and the accelerators that are described"
_BACKWARD: Final = 2  # FLOPs of a backward pass relative to a forward pass


@rule("plausible.throughput", scope="result", source=_SOURCE, remedy=_REMEDY)
def below_the_peak(
    result: Result,
    benchmark: Benchmark,
    *,
    flops_per_sample: Mapping[str, float],
    formats: Sequence[str],
    warn_above: float,
) -> Iterator[Deviation]:
    """Closed runs are slower than the peak of the described accelerators, where it is known."""
    flops = flops_per_sample.get(benchmark.name)
    peak = _peak_flops(result, formats)
    if flops is None or peak is None:
        return
    key = count_key([run.log for run in result.runs], benchmark.name)
    for run in result.runs:
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        # The open division allows other models.
        if evaluation is None or run.log.value(keys.SUBMISSION_DIVISION) != "closed":
            continue
        samples = samples_at(run.log, benchmark.name, key, evaluation)
        yield from _judged(run.log, run.number, flops, samples, peak, warn_above)


@rule("result.plausible", scope="result", source=_SOURCE, remedy=_REMEDY)
def own_below_the_peak(
    result: Result,
    task: Task,
    *,
    formats: Sequence[str],
    warn_above: float,
    core_flops_per_cycle: Mapping[str, float],
    core_hz: float,
) -> Iterator[Deviation]:
    """Runs take time, and are slower than the peak of the described devices, where it is known.

    The FLOPs of a sample are those of the suite's unit table. Without accelerators the peak is that
    of the cores: more than any processor's, by the precision of the plan. Then each block also has
    the processor time that its samples take at that peak, where the harness has measured it.
    """
    yield from _without_time(result)
    for run in result.runs:
        per_cycle = core_flops_per_cycle.get(_precision(run.log), core_flops_per_cycle["other"])
        peak = _peak_flops(result, formats) or _cores_peak(result, per_cycle * core_hz)
        forward = known_forward_flops(run, task)
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        if forward is None or evaluation is None:
            continue
        flops = forward * (1 + _BACKWARD)
        if peak is not None:
            samples = samples_at(run.log, task.name, "epoch_num", evaluation)
            yield from _judged(run.log, run.number, flops, samples, peak, warn_above)
        if not accelerators_per_node(result.system or {}):
            yield from _steps_not_taken(run, flops, per_cycle * core_hz)


def _steps_not_taken(run: SealedRun, flops: float, core_peak: float) -> Iterator[Deviation]:
    """Yield a deviation for the first block with less processor time than its samples take."""
    processor_s = None
    for entry in run.log.entries:
        if entry.key == keys.TRACKED_STATS and isinstance(entry.value, dict):
            measured = number(entry.value.get("processor_s"), 0)
            processor_s = processor_s if measured is None else measured
        if entry.key != keys.BLOCK_STOP:
            continue
        samples = whole(entry.metadata.get("samples"), 0, COUNT_CAP) or 0
        if processor_s is not None and processor_s < (least_s := samples * flops / core_peak):
            expected = f"{least_s:.3g} s of processor time or more, for {samples} samples"
            yield Deviation(expected, f"{processor_s:.3g} s", entry.line, run.number)
            return
        processor_s = None


def known_forward_flops(run: SealedRun, task: Task) -> float | None:
    """Return the FLOPs of the forward pass on a sample, by the suite's own table of units.

    None if there is none of the task, or if an open run trained another model than the task's.
    """
    if task.name not in task_names() or find_task(task.name).sha256 != task.sha256:
        return None
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    if not closed and run.fact("model", "sha256") not in accepted_tensors(task):
        return None
    return load_units(task.name).forward_flops


def has_known_peak(result: Result) -> bool:
    """Tell whether the described devices have a peak by which time is bounded."""
    system = result.system or {}
    if accelerators_per_node(system):
        return find_accelerator(str(system.get("accelerator_model_name", ""))) is not None
    return bool(device_count(system))


def _without_time(result: Result) -> Iterator[Deviation]:
    """Yield a deviation for each closed run with a block, or a whole, that took no time."""
    for run in result.runs:
        if run.log.value(keys.SUBMISSION_DIVISION) != "closed":
            continue
        before = run.log.first(keys.RUN_START)
        ends = [*run.log.all(keys.EVAL_ACCURACY), *run.log.all(keys.RUN_STOP)[:1]]
        for nth, entry in enumerate(ends):
            last = nth == len(ends) - 1 and nth > 0  # the run stops as it is evaluated
            if before is not None and entry.time_ms <= before.time_ms and not last:
                expected = f"time between {before.key} and {entry.key}"
                yield Deviation(expected, "none", entry.line, run.number)
                break
            before = entry


def _precision(log: Log) -> str:
    """Return the precision of the run's plan; that of the default plan if it cannot be read."""
    text = log.value(keys.PLAN)
    try:
        return ParallelPlan.parse(text).precision if isinstance(text, str) else "fp32"
    except UserError:
        return "fp32"


def _cores_peak(result: Result, flops_per_core: float) -> tuple[float, str] | None:
    """Return a bound on FLOP/s of the described cores of all nodes, and their name."""
    system = result.system or {}
    if accelerators_per_node(system):
        return None
    cores = device_count(system)
    return (cores * flops_per_core, f"{cores} cores") if cores else None


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
    """Return the total peak FLOP/s in the fastest of ``formats``, and the accelerator name."""
    system = result.system or {}
    accelerator = find_accelerator(str(system.get("accelerator_model_name", "")))
    count = accelerator_count(system)
    if accelerator is None or not count:
        return None
    peaks = [accelerator.peak_tflops.get(name, 0.0) for name in formats]
    return count * max(peaks, default=0.0) * 1e12, f"{count} {accelerator.name}"
