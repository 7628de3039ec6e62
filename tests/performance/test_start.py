"""How fast the command line answers. Physical limit: an interpreter that does nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS = 10


def test_help(benchmark: Any) -> None:
    ratios = []

    def pair() -> None:
        bare_s = _seconds([sys.executable, "-c", "pass"])
        help_s = _seconds(
            [sys.executable, "-c", "from hybridperf.cli import main; main(['--help'])"]
        )
        ratios.append(help_s / bare_s)

    benchmark.pedantic(pair, rounds=ROUNDS, iterations=1, warmup_rounds=1)

    benchmark.extra_info["time over a bare interpreter's, median"] = round(
        statistics.median(ratios), 2
    )


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    return time.perf_counter() - start
