"""The sum of the units' times beside whole steps, on one rank, in processor time of its thread."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.profile import UnitProfiler
from hybridperf_reference.models import chain_of
from tests.families import LAPTOP

_MICROBATCHES: Final = (8, 32)
_PAIRS: Final = 60
_MOST_MEDIAN, _MOST_WORST = 0.03, 0.08


def _error(name: str, microbatch: int) -> float:
    """Return by what share the sum is longer than steps without marks, measured in turn."""
    task = find_task(name)
    profiler = UnitProfiler(chain_of(task, 0), task, torch.device("cpu"), clock=time.thread_time)
    profiler.measure([microbatch], steps=3)  # warms up
    marked, whole_s = [], []
    for pair in range(_PAIRS):
        for with_marks in (True, False) if pair % 2 else (False, True):
            marks = profiler.step(microbatch, marked=with_marks)
            if with_marks:
                marked.append(marks)
            else:
                whole_s.append(profiler.seconds(marks))
    times = profiler.times(microbatch, marked)
    parts = [*times.forward_s, *times.backward_s, times.loss_s, *times.update_s]
    return sum(parts) / statistics.median(whole_s) - 1


def test_the_sum_of_units_is_a_step(benchmark: Any) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        errors = benchmark.pedantic(
            lambda: {(name, size): _error(name, size) for name in LAPTOP for size in _MICROBATCHES},
            rounds=1,
        )
    finally:
        torch.set_num_threads(threads)
    for (name, size), error in errors.items():
        benchmark.extra_info[f"{name}, micro-batches of {size}"] = f"{error:+.1%}"
    absolute = [abs(error) for error in errors.values()]
    assert statistics.median(absolute) <= _MOST_MEDIAN
    assert max(absolute) <= _MOST_WORST
