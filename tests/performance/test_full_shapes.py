"""How fast our trainer trains models of full size, and how near that is to what the device can do.

On one accelerator, or on one thread of the processor where the machine has none. Input is synthetic
and on the device already; the optimiser's step is in. A sample costs three times the arithmetic of
its forward pass: that of matrix products and convolutions, attention's included, a multiply-add
counted as two. Model-FLOPs utilisation (MFU) is that arithmetic over what the best matrix product
in the same number format does beside it, and over the peak that the vendor states.
"""

from __future__ import annotations

import shutil
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from tests.performance.full_shape_cases import CASES
from tests.performance.launch import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.mark.timeout(1800)  # all kernels of a large model may have to be compiled
@pytest.mark.parametrize("name", CASES)
def test_full_shapes(benchmark: Any, tmp_path: Path, name: str) -> None:
    if "compile=on" in CASES[name].processor.plan and shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile with")
    found: list[dict[str, Any]] = []

    def whole() -> None:
        found.extend(run_ranks("tests.performance.full_shape_worlds", tmp_path, 1, name))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    facts = found[0]
    sample_flops, limits = 3 * facts["forward_flops"], facts["best_product_flops_per_s"]
    rates = [facts["batch"] / step_s for step_s in facts["step_s"]]
    used = [rate * sample_flops / limit for rate, limit in zip(rates, limits, strict=True)]
    benchmark.extra_info |= {
        "device": facts["device"],
        "plan": facts["plan"],
        "batch": facts["batch"],
        "GFLOP of a sample": round(sample_flops / 1e9, 2),
        "rounds": len(rates),
        "all below": "median, lowest and highest",
        "samples/s": _spread(rates),
        "TFLOP/s": _spread(rate * sample_flops / 1e12 for rate in rates),
        "TFLOP/s of the best matrix product": _spread(limit / 1e12 for limit in limits),
        "MFU of the best matrix product": _spread(used),
    }
    if peak := facts["peak_flops_per_s"]:
        benchmark.extra_info["MFU of the stated peak"] = _spread(
            rate * sample_flops / peak for rate in rates
        )


def _spread(values: Iterable[float]) -> list[float]:
    """Return the median, the lowest and the highest, to three digits and more."""
    values = list(values)
    three = statistics.median(values), min(values), max(values)
    return [float(f"{value:.4g}") for value in three]
