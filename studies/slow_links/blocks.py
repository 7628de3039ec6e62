"""Methods, rates and tasks of ``blocks.toml``, and the records of blocks over slow links."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from operator import mul
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, get_args

from hybridperf.plan import ParallelPlan
from hybridperf.projection.profile import Communication, Profile
from hybridperf.projection.units import load_units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "AVERAGING_WORK",
    "COMPARISONS",
    "METHODS",
    "PROFILE",
    "PROJECTED_PLANS",
    "RATES_MBIT_PER_S",
    "REPETITIONS",
    "TASKS",
    "TRANSFERS",
    "Comparison",
    "ProjectedPlan",
    "Record",
    "SlowLinkMethod",
    "add_averaging_work",
    "add_link",
    "add_profile",
    "add_record",
    "profiled_ranks",
    "read_links",
    "read_profiles",
    "read_records",
]


@dataclass(frozen=True, slots=True)
class SlowLinkMethod:
    """A training method over the link."""

    key: str
    name: str
    plan: str
    converges_as: str  #: key of the method in ``methods.toml`` with the same convergence

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


@dataclass(frozen=True, slots=True)
class ProjectedPlan:
    """A plan that is projected, not measured."""

    name: str
    plan: str


_TABLE: Final = tomllib.loads(Path(__file__).with_name("blocks.toml").read_text())
TASKS: Final[tuple[str, ...]] = tuple(_TABLE["tasks"])
RATES_MBIT_PER_S: Final[tuple[float, ...]] = tuple(_TABLE["rates_mbit_per_s"])  #: 0: not limited
REPETITIONS: Final[int] = _TABLE["repetitions"]
TRANSFERS: Final = ("all_reduce", "send")  #: in place of a method: kinds of transfers to time
PROFILE: Final = "profile"  #: in place of a method: a profile of the given steps
AVERAGING_WORK: Final = "averaging_work"  #: in place of a method: `Profile.averaging_work`
#: collectives of a laptop task's step, by runtime; FSDP gathers and scatters each unit
_COLLECTIVES: Final = {"blocking": 1, "overlapped": 2, "reducer": 1, "powersgd": 2, "sharded": 0}
METHODS: Final = tuple(SlowLinkMethod(**each) for each in _TABLE["methods"])
PROJECTED_PLANS: Final = tuple(ProjectedPlan(**each) for each in _TABLE["ladder"])
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
    input_s: float  #: seconds of reading samples, on the slowest rank
    sent_bytes: tuple[int, int]  #: bytes per step on each end's interface
    counted_bytes: int  #: bytes per step of an end's messages, without headers
    others: float  #: mean number of processors busy with other processes or the kernel

    @property
    def place(self) -> tuple[str, float, str, int]:
        """Return the key of the record."""
        return self.task, self.rate_mbit_per_s, self.method, self.repetition


def read_records(path: Path) -> list[Record]:
    """Return the records in a file of JSON lines; none without the file."""
    return [
        Record(**each | {"sent_bytes": tuple(each["sent_bytes"])})
        for each in _lines(path)
        if "method" in each
    ]


def read_profiles(path: Path) -> dict[tuple[str, int, float], list[Profile]]:
    """Return the file's profiles by task, number of ranks and rate.

    One per repetition, with the averaging work at that rate.
    """
    lines, found = _lines(path), defaultdict[tuple[str, int, float], list[Profile]](list)
    shares = {
        (_turn(line), line["rate_mbit_per_s"]): line[AVERAGING_WORK]
        for line in lines
        if AVERAGING_WORK in line
    }
    for line in (each for each in lines if PROFILE in each):
        profile = Profile.from_table(_convert_profile(line[PROFILE]))
        for (turn, rate), share in shares.items():
            if turn == _turn(line):
                own = replace(profile, averaging_work=share)
                found[profile.task, profile.ranks, rate].append(own)
    return dict(found)


def _convert_profile(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a recorded profile to the present format.

    Old profiles have times of codecs, processor seconds of messages, the slowdown by contiguous
    parameters, and overheads of each runtime per step, unit, parameter and byte; the present format
    has medians over runtimes.
    """
    if "runtimes" not in profile:
        return dict(profile)
    transfers = [
        transfer | {"times": [time[:2] for time in transfer["times"]]}
        for transfer in profile["transfers"]
        if transfer["kind"] in get_args(Communication)
    ]
    units = load_units(profile["task"]).units
    sums = (
        *(1, len(units), sum(unit.tensors for unit in units)),
        sum(4 * unit.parameters for unit in units),
    )
    averages, passes = [], []
    for runtime in profile["runtimes"]:
        if runtime["name"] in _COLLECTIVES:
            seconds = (runtime[key] for key in ("step_s", "unit_s", "tensor_s", "byte_s"))
            averaging_s = sum(map(mul, sums, seconds))
            averages.append(averaging_s / (_COLLECTIVES[runtime["name"]] or 2 * len(units)))
        else:
            passes.append(runtime["pass_s"])
    left = {key: profile[key] for key in profile.keys() - {"stretch_of_shards", "runtimes"}}
    both = {"pass_s": median(passes or [0.0]), "bucket_s": median(averages or [0.0])}
    return left | both | {"transfers": transfers}


def profiled_ranks(path: Path, task: str, repetition: int) -> set[int]:
    """Return the numbers of ranks with a profile of ``task`` in ``repetition``."""
    lines = (line for line in _lines(path) if PROFILE in line)
    return {line[PROFILE]["ranks"] for line in lines if _turn(line) == (task, repetition)}


def read_links(path: Path) -> dict[float, dict[str, list[tuple[int, float]]]]:
    """Return bytes and seconds of each of `TRANSFERS` by the rate of the link."""
    return {
        line["rate_mbit_per_s"]: {
            kind: [(count, seconds) for count, seconds in line[kind]] for kind in TRANSFERS
        }
        for line in _lines(path)
        if all(kind in line for kind in TRANSFERS)
    }


def add_record(path: Path, record: Record) -> None:
    """Append ``record`` to the file at ``path``."""
    _add(path, asdict(record))


def add_link(
    path: Path, rate_mbit_per_s: float, transfers: Mapping[str, Sequence[tuple[int, float]]]
) -> None:
    """Append bytes and seconds of each of `TRANSFERS` to the file at ``path``."""
    _add(path, {"rate_mbit_per_s": rate_mbit_per_s, **transfers})


def add_profile(path: Path, task: str, repetition: int, profile: Mapping[str, object]) -> None:
    """Append a profile of ``task``, from `Profile.as_table`, to the file at ``path``."""
    _add(path, {"task": task, "repetition": repetition, PROFILE: profile})


def add_averaging_work(
    path: Path, task: str, repetition: int, rate_mbit_per_s: float, share: float
) -> None:
    """Append the averaging work of ``task`` at a rate, which replaces the profiles' value."""
    line = {"task": task, "repetition": repetition, "rate_mbit_per_s": rate_mbit_per_s}
    _add(path, line | {AVERAGING_WORK: share})


def _turn(line: Mapping[str, Any]) -> tuple[str, int]:
    return line["task"], line["repetition"]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _add(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
