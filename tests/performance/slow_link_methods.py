"""What is measured over slow links, as ``slow_links.toml`` says, and the records of it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.plan import ParallelPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ALL_REDUCE",
    "COMPARISONS",
    "LATENCY_S",
    "METHODS",
    "MOST_BYTES_PER_S",
    "RATES_MBIT_PER_S",
    "REPETITIONS",
    "TASKS",
    "Comparison",
    "Record",
    "SlowLinkMethod",
    "add_record",
    "read_records",
]


@dataclass(frozen=True, slots=True)
class SlowLinkMethod:
    """A way to train over the link."""

    key: str
    name: str
    plan: str
    converges_as: str  #: key of the method of ``methods.toml`` that needs as many samples

    @property
    def ranks(self) -> int:
        """Return the number of processes, half of them at each end."""
        return ParallelPlan.parse(self.plan).ranks


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods, by their keys."""

    name: str
    first: str
    second: str


_TABLE: Final = tomllib.loads(Path(__file__).with_name("slow_links.toml").read_text())
TASKS: Final[tuple[str, ...]] = tuple(_TABLE["tasks"])
RATES_MBIT_PER_S: Final[tuple[float, ...]] = tuple(_TABLE["rates_mbit_per_s"])  #: 0: not limited
REPETITIONS: Final[int] = _TABLE["repetitions"]
ALL_REDUCE: Final = "all-reduce"  #: in place of a method: how long one of so many bytes takes
LATENCY_S: Final[float] = _TABLE["link"]["latency_s"]
MOST_BYTES_PER_S: Final[float] = _TABLE["link"]["most_bytes_per_s"]
METHODS: Final = tuple(SlowLinkMethod(**each) for each in _TABLE["methods"])
COMPARISONS: Final = tuple(Comparison(**each) for each in _TABLE["comparisons"])


@dataclass(frozen=True, slots=True)
class Record:
    """One block of steps by one method at one rate."""

    task: str
    rate_mbit_per_s: float  #: 0: not limited
    method: str
    repetition: int
    steps: int
    step_s: float  #: mean of the steps after the warm-up
    input_s: float  #: of it reading samples, on the rank that takes longest
    sent_bytes: tuple[int, int]  #: a step, by each end, as its interface counts them
    counted_bytes: int  #: a step, by an end, as the method has them, without headers
    others: float  #: processors that other processes, or the kernel, kept busy meanwhile

    @property
    def place(self) -> tuple[str, float, str, int]:
        """Return what no two records share."""
        return self.task, self.rate_mbit_per_s, self.method, self.repetition


def read_records(path: Path) -> list[Record]:
    """Return the records in a file of JSON lines; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    fields: Iterable[dict[str, object]] = map(json.loads, lines)
    return [Record(**each | {"sent_bytes": tuple(each["sent_bytes"])}) for each in fields]  # type: ignore[arg-type]  # our own file


def add_record(path: Path, record: Record) -> None:
    """Append ``record`` to the file at ``path``."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")
