"""A profile: unit times at several micro-batches and communication, measured on one machine."""

from __future__ import annotations

import dataclasses
import statistics
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args

from hybridperf.projection.fit import fit_line
from hybridperf.projection.link import Library, Link, Network
from hybridperf.projection.runtime_work import RUNTIMES, RuntimeWork
from hybridperf.projection.units import UnitTimes
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, RATIO_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Communication", "Profile", "Transfer"]

Communication = Literal["send", "all_reduce", "reduce_scatter", "all_gather"]

Item = TypeVar("Item")

_MOST_S: Final = 10**6  #: of any time in a profile
_TEXT_CAP: Final = 1000  #: characters


@dataclass(frozen=True, slots=True)
class Transfer:
    """Measured times of one kind of communication in groups of ``ranks``, all groups at once."""

    kind: Communication
    ranks: int  #: of a group; 2 for ``send``
    times: tuple[tuple[int, float], ...]
    #: bytes of a message, or of the whole tensor of a collective; and its median seconds

    def line(self) -> tuple[float, float]:
        """Return the seconds of an empty message, and the seconds of each byte."""
        return fit_line(self.times)


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a task's training with all of ``ranks`` computing at once."""

    task: str
    precision: str
    ranks: int  #: on this machine
    threads: int  #: of each rank, on the CPU
    cores: int  #: that the ranks may use
    library: Library
    date: str  #: when it was measured, as in ISO 8601
    unit_names: tuple[str, ...]
    unit_times: tuple[UnitTimes, ...]  #: by increasing micro-batch
    contention: float  #: seconds of a step with all ranks computing, over those of one alone
    transfers: tuple[Transfer, ...]
    input_s: float = 0.0  #: of reading the inputs of a sample, where no worker process does it
    target_s: float = 0.0  #: of reading the targets of a sample
    averaging_work: float = 0.0
    #: seconds by which steps beside an all-reduce take longer, over those that it takes alone
    runtimes: tuple[RuntimeWork, ...] = ()  #: of the trainer, in groups of all ranks
    made_with: Mapping[str, str] = field(default_factory=dict)
    #: what it holds for: hashes and names of the task, the machine, torch and the trainer's code

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

        Groups of a size that was not measured get the links of the nearest one that was.

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
            runtimes=self.runtimes,
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
        names = tuple(_list(table, "unit_names", _text))
        library = _one_of(table, "library", get_args(Library))
        transfers = _list(table, "transfers", _transfer)
        times = _list(table, "unit_times", lambda at, value: _unit_times(at, value, len(names)))
        sizes = [each.microbatch for each in times]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError("unit_times: expected increasing micro-batches")
        facts = _table("made_with", table.get("made_with"))
        ranks = _whole(table, "ranks", DEVICES_CAP)
        kinds = [(each.kind, each.ranks) for each in transfers]
        if ranks > 1 and not {("send", 2), ("all_reduce", 2)} <= {*kinds}:
            raise ValueError("transfers: expected sends and all-reduces between two ranks")
        if len(set(kinds)) < len(kinds):
            raise ValueError("transfers: expected each kind and number of ranks once")
        return cls(
            task=_text("task", table.get("task")),
            precision=_text("precision", table.get("precision")),
            ranks=ranks,
            threads=_whole(table, "threads", DEVICES_CAP),
            cores=_whole(table, "cores", DEVICES_CAP),
            library=cast("Library", library),
            date=_text("date", table.get("date")),
            unit_names=names,
            unit_times=tuple(times),
            contention=_seconds("contention", table.get("contention"), RATIO_CAP),
            transfers=tuple(transfers),
            input_s=_seconds("input_s", table.get("input_s")),
            target_s=_seconds("target_s", table.get("target_s")),
            averaging_work=_seconds("averaging_work", table.get("averaging_work"), RATIO_CAP),
            runtimes=tuple(_list(table, "runtimes", _runtime)),
            made_with={_text("made_with", k): _text(k, v) for k, v in facts.items()},
        )


def _link(latency_s: float, byte_s: float) -> Link:
    return Link(latency_s, 1 / byte_s if byte_s else float("inf"))


def _ring_link(reduces: Transfer) -> Link:
    """Return the link whose ring all-reduces take as long as ``reduces``.

    A ring of n ranks takes 2 (n - 1) steps of one n-th of the bytes (Patarasuk and Yuan 2009).
    """
    latency_s, byte_s = reduces.line()
    steps = 2 * (reduces.ranks - 1)
    return _link(latency_s / steps, byte_s * reduces.ranks / steps)


def _unit_times(at: str, value: object, units: int) -> UnitTimes:
    table = _table(at, value)

    def by_unit(name: str) -> tuple[float, ...]:
        seconds = tuple(_list(table, name, _seconds))
        if len(seconds) != units:
            raise ValueError(f"{at}.{name}: expected {units} numbers")
        return seconds

    return UnitTimes(
        microbatch=_whole(table, "microbatch", COUNT_CAP),
        forward_s=by_unit("forward_s"),
        backward_s=by_unit("backward_s"),
        loss_s=_seconds("loss_s", table.get("loss_s")),
        update_s=by_unit("update_s"),
    )


def _transfer(at: str, value: object) -> Transfer:
    table = _table(at, value)

    def point(where: str, values: object) -> tuple[int, float]:
        if isinstance(values, list) and len(values) == 2:
            size, seconds = whole(values[0], 1, COUNT_CAP), _seconds(where, values[1])
            if size is not None and seconds > 0:
                return size, seconds
        raise ValueError(f"{where}: expected bytes and seconds")

    times = _list(table, "times", point)
    if len({size for size, _ in times}) < 2:
        raise ValueError(f"{at}.times: expected two sizes or more")
    kind = _one_of(table, "kind", get_args(Communication))
    return Transfer(cast("Communication", kind), _whole(table, "ranks", DEVICES_CAP), tuple(times))


def _runtime(at: str, value: object) -> RuntimeWork:
    table = _table(at, value)
    name = _one_of(table, "name", RUNTIMES)
    seconds = (
        _seconds(f"{at}.{each.name}", table.get(each.name))
        for each in dataclasses.fields(RuntimeWork)[1:]
    )
    return RuntimeWork(name, *seconds)


def _table(at: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{at}: expected an object")  # noqa: TRY004 - wrong text, not a wrong argument
    return value


def _list(table: Mapping[str, object], name: str, read: Callable[[str, Any], Item]) -> list[Item]:
    value = table.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected an array")  # noqa: TRY004 - as above
    return [read(name, item) for item in value]


def _text(at: str, value: object) -> str:
    if isinstance(value, str) and len(value) <= _TEXT_CAP:
        return value
    raise ValueError(f"{at}: expected text of at most {_TEXT_CAP} characters")


def _seconds(at: str, value: object, most: float = _MOST_S) -> float:
    found = number(value, 0, most)
    if found is None:
        raise ValueError(f"{at}: expected a number from 0 to {most:,}")
    return float(found)


def _whole(table: Mapping[str, object], name: str, most: int) -> int:
    found = whole(table.get(name), 1, most)
    if found is None:
        raise ValueError(f"{name}: expected a whole number from 1 to {most:,}")
    return found


def _one_of(table: Mapping[str, object], name: str, values: tuple[str, ...]) -> str:
    value = table.get(name)
    if value not in values:
        raise ValueError(f"{name}: expected one of {', '.join(values)}")
    return value
