"""How much memory a rank needs under a plan, beside what docs/plans.md says.

Peak growth of a rank's resident memory, over a training step of AdamW, in MiB. The allocator hands
back at once what is freed, so that what is resident is what is alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridperf.plan import ParallelPlan
from tests.performance.launch import run_ranks

PLANS = (
    "dp=1",
    "recompute=full",
    "dp=2",
    "dp=2,zero=1",
    "dp=2,zero=3",
    "pp=2,schedule=gpipe,microbatches=4",
    "pp=2,schedule=1f1b,microbatches=4",
)
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' /proc")
@pytest.mark.timeout(600)  # on a machine that others use too
@pytest.mark.parametrize("plan", PLANS)
def test_peak_memory(benchmark: Any, tmp_path: Path, plan: str) -> None:
    found: list[dict[str, int]] = []
    ranks = ParallelPlan.parse(plan).ranks

    def whole() -> None:
        module = "tests.performance.memory_worlds"
        found.extend(run_ranks(module, tmp_path, ranks, plan, **ALLOCATOR))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    for rank, numbers in enumerate(found):
        peak, *parts = (round(each / 2**20) for each in numbers.values())
        stated = dict(zip([name for name in numbers if name != "peak"], parts, strict=True))
        benchmark.extra_info[f"rank {rank}, MiB"] = {"peak": peak, "theory": sum(parts), **stated}
