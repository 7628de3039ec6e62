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

__all__ = ["MlperfBenchmark", "mlperf_benchmark"]

_FILE: Final = Path(__file__).with_suffix(".toml")
_OTHER: Final = "other"  #: the row of benchmarks that are not listed


@dataclass(frozen=True, slots=True)
class MlperfBenchmark:
    """The facts about a benchmark that hold in every round of MLPerf Training."""

    drops: int  #: runs that the olympic mean leaves out at either end
    runs: int | None = None  #: number of runs of a result; None if unknown
    epoch_num: Literal["samples", "epochs", "batches"] = "batches"
    #: unit of an evaluation's epoch_num; batches: epochs that end with their last whole batch


def mlperf_benchmark(name: str) -> MlperfBenchmark:
    """Return the facts about the benchmark ``name``, as logs spell it, also if it is not listed."""
    catalogue = _catalogue()
    return catalogue.get(name, catalogue[_OTHER])


@functools.cache
def _catalogue() -> Mapping[str, MlperfBenchmark]:
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: build(MlperfBenchmark, facts, path=_FILE.name, at=name)
        for name, facts in table.items()
    }
