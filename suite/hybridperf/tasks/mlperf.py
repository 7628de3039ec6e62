"""The catalogue of MLPerf Training's benchmarks: facts that do not depend on the round."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MlperfBenchmark", "mlperf_benchmarks"]

_FILE: Final = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class MlperfBenchmark:
    """The facts about a benchmark that hold in every round of MLPerf Training."""

    runs: int  #: number of runs of a result
    epoch_num: Literal["samples", "epochs", "batches"] = "batches"
    #: unit of an evaluation's epoch_num; batches: epochs that end with their last whole batch


@functools.cache
def mlperf_benchmarks() -> Mapping[str, MlperfBenchmark]:
    """Read the catalogue; return the benchmarks by their names in logs."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: build(MlperfBenchmark, facts, path=_FILE.name, at=name)
        for name, facts in table.items()
    }
