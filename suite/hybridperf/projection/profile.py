"""A profile: unit times at several micro-batches and communication, measured on one machine."""

from __future__ import annotations

import dataclasses
import statistics
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
import numpy as np

from hybridperf.projection.network import Library, Network, NetworkLink
from hybridperf.projection.units import MOST_S, Seconds, UnitTimes
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, RATIO_CAP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Communication", "Profile", "Transfer", "fit_line"]

Communication = Literal["send", "all_reduce", "reduce_scatter", "all_gather"]

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=DEVICES_CAP)]
_Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=RATIO_CAP)]
_Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=COUNT_CAP)]
_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=MOST_S)]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Measured times of one kind of communication in groups of ``ranks``, all groups at once."""

    kind: Communication
    ranks: _Count  #: ranks of a group; 2 for ``send``
    times: tuple[tuple[_Bytes, _Positive], ...]
    #: bytes of a message, or of the whole tensor of a collective; and its median seconds

    def line(self) -> tuple[float, float]:
        """Return the seconds of an empty message, and the seconds of each byte."""
        return fit_line(self.times)


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured times of a task's training with all ``ranks`` computing at once."""

    task: _Text
    precision: _Text
    ranks: _Count  #: ranks on this machine
    threads: _Count  #: threads of each rank on the CPU
    library: Library
    date: _Text  #: date and time of the measurement, in ISO 8601
    unit_names: tuple[_Text, ...]
    unit_times: tuple[UnitTimes, ...]  #: times of units by increasing micro-batch
    contention: _Ratio  #: step time with all ranks computing over the step time of one rank alone
    transfers: tuple[Transfer, ...]
    input_s: Seconds = 0.0  #: reading the inputs of a sample, where no worker process does it
    target_s: Seconds = 0.0  #: reading the targets of a sample
    averaging_work: _Ratio = 0.0
    #: slowdown of steps that overlap an all-reduce, over the time of the all-reduce alone
    pass_s: Seconds = 0.0  #: overhead of the trainer's software in each pass of a pipeline
    bucket_s: Seconds = 0.0  #: overhead of software in each collective that averages gradients
    made_with: dict[_Text, _Text] = field(default_factory=dict)
    #: hashes and names of the task, the machine, torch and the trainer's code it is valid for

    def times(self, microbatch: int) -> UnitTimes:
        """Return the times of ``microbatch`` samples, on the line through the nearest measured two.

        A `UnitTiming`. An update takes as long whatever the micro-batch. The ranks of the first
        and the last stage read samples, which counts in the first unit and in the loss.
        """
        found = self._on_line(microbatch)
        first, *others = found.forward_s
        return dataclasses.replace(
            found,
            forward_s=(first + self.input_s * microbatch, *others),
            loss_s=found.loss_s + self.target_s * microbatch,
        )

    def _on_line(self, microbatch: int) -> UnitTimes:
        sizes = [each.microbatch for each in self.unit_times]
        if len(sizes) == 1:
            return dataclasses.replace(self.unit_times[0], microbatch=microbatch)
        place = min(max(bisect_right(sizes, microbatch), 1), len(sizes) - 1)
        low, high = self.unit_times[place - 1 : place + 1]
        share = (microbatch - low.microbatch) / (high.microbatch - low.microbatch)

        def between(first: float, second: float) -> float:
            # Noise may make a line so steep that it is negative below the smallest size.
            return max(
                first + share * (second - first), min(first, second) * microbatch / sizes[-1]
            )

        def by_unit(name: str) -> tuple[float, ...]:
            pairs = zip(getattr(low, name), getattr(high, name), strict=True)
            return tuple(between(*pair) for pair in pairs)

        return UnitTimes(
            microbatch,
            forward_s=by_unit("forward_s"),
            backward_s=by_unit("backward_s"),
            loss_s=between(low.loss_s, high.loss_s),
            update_s=tuple(
                statistics.median(each)
                for each in zip(*(times.update_s for times in self.unit_times), strict=True)
            ),
        )

    def network(self, group_ranks: int = 2) -> Network:
        """Return the links between the ranks, for collectives of groups of ``group_ranks``.

        A group of an unmeasured size gets the links of the nearest measured size.

        Raises:
            ValueError: if the profile is of one rank.
        """
        (sends,) = (each for each in self.transfers if each.kind == "send")
        reduces = [each for each in self.transfers if each.kind == "all_reduce"]
        nearest = min(reduces, key=lambda each: abs(each.ranks - group_ranks))
        return Network(
            devices_per_node=self.ranks,
            inside=_link(*sends.line()),
            library=self.library,
            inside_collectives=_ring_link(nearest),
            averaging_work=self.averaging_work,
            pass_s=self.pass_s,
            bucket_s=self.bucket_s,
        )

    def as_table(self) -> dict[str, object]:
        """Return the profile as what JSON holds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> Profile:
        """Return the profile that ``table``, an object of JSON, states.

        Raises:
            ValueError: naming the first key that is missing or out of bounds.
        """
        if missing := [each.name for each in dataclasses.fields(cls) if each.name not in table]:
            raise ValueError(f"expected the key {missing[0]}")
        found = msgspec.convert(table, cls)
        sizes = [each.microbatch for each in found.unit_times]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError("unit_times: expected increasing micro-batches")
        for times in found.unit_times:
            for name in ("forward_s", "backward_s", "update_s"):
                if len(getattr(times, name)) != len(found.unit_names):
                    raise ValueError(f"unit_times.{name}: expected {len(found.unit_names)} numbers")
        kinds = [(each.kind, each.ranks) for each in found.transfers]
        if found.ranks > 1 and not {("send", 2), ("all_reduce", 2)} <= {*kinds}:
            raise ValueError("transfers: expected sends and all-reduces between two ranks")
        if len(set(kinds)) < len(kinds):
            raise ValueError("transfers: expected each kind and number of ranks once")
        if any(len({size for size, _ in each.times}) < 2 for each in found.transfers):
            raise ValueError("transfers.times: expected two sizes or more")
        return found


def _link(latency_s: float, byte_s: float) -> NetworkLink:
    return NetworkLink(latency_s, 1 / byte_s if byte_s else float("inf"))


def _ring_link(reduces: Transfer) -> NetworkLink:
    """Return the link whose ring all-reduces take as long as ``reduces``.

    A ring of n ranks takes 2 (n - 1) steps of one n-th of the bytes (Patarasuk and Yuan 2009).
    """
    latency_s, byte_s = reduces.line()
    steps = 2 * (reduces.ranks - 1)
    return _link(latency_s / steps, byte_s * reduces.ranks / steps)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the intercept and the slope of a line through ``points`` (x, y), neither negative.

    The squares of relative errors are least, so that small messages count as much as large ones.

    Raises:
        ValueError: if there are fewer than two different x, or a y that is not positive.
    """
    x, y = np.array(points, dtype=np.float64).T
    if len(set(x.tolist())) < 2 or (y <= 0).any():
        raise ValueError("expected two different sizes or more, all with positive times")
    columns = np.stack([1 / y, x / y], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    if intercept >= 0 and slope >= 0:
        return float(intercept), float(slope)
    # With one of them 0, the other minimises the same sum.
    alone = columns.sum(axis=0) / (columns**2).sum(axis=0)
    return (0.0, float(alone[1])) if intercept < 0 else (float(alone[0]), 0.0)
