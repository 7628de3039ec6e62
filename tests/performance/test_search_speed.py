"""A search for 4,096 devices takes less than ten seconds of processor time, and 256 MiB.

One for a number of devices and samples with more divisors may take fifteen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROOT: Final = Path(__file__).parents[2]
MOST_MIB: Final = 256
BATCHES: Final = (65_536, 64_512)  # the second one has divisors that are no powers of two
MOST_S: Final = dict(zip(BATCHES, (10.0, 15.0), strict=True))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("system", ["a100-sxm", "h100-sxm"])
@pytest.mark.parametrize(
    "task", ["bert_large/cluster", "vit/cluster", "resnet50/cluster", "vgg/cluster"]
)
def test_4096_devices(benchmark: BenchmarkFixture, task: str, system: str, batch: int) -> None:
    devices = 4096 if batch == BATCHES[0] else 4032  # which divides the batch
    command = [sys.executable, "-c", "from hybridperf.cli import main; raise SystemExit(main())"]
    command += ["plan", task, "--devices", f"{devices}"]
    command += ["--system", system, "--precision", "bf16", "--all-methods", "--json"]
    command += ["--set", f"training.global_batch_size={batch}"]

    def plan() -> tuple[bytes, float, float]:
        """Return what is printed, the seconds of the processor, and the peak memory in MiB."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        with process.stdout:
            printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return printed, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024

    printed, seconds, mebibytes = benchmark.pedantic(plan, rounds=1)  # type: ignore[no-untyped-call]  # its plugin's

    found = json.loads(printed)
    benchmark.extra_info["processor s"] = round(seconds, 2)
    benchmark.extra_info["MiB"] = round(mebibytes)
    for kind in ("equivalent", "other"):
        benchmark.extra_info[kind] = found[kind]["plans"][0]["plan"]
        benchmark.extra_info[f"{kind}, left"] = found[kind]["left"]
    assert seconds < MOST_S[batch]
    assert mebibytes < MOST_MIB
