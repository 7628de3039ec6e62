"""Systems that plans are projected for: a catalogue, and files of the same format.

A system file has the tables of the catalogue's TOML files (``systems.toml``, ``devices.toml`` and
``system/catalog.toml``): one ``[[system]]``, and the links, the accelerator and the rates that
differ from the catalogue's. ``hybridperf fit`` writes one from logs.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn, TypeAlias

import msgspec

from hybridperf.errors import UserError
from hybridperf.projection.device import (
    LayerOverhead,
    PeakShares,
    SpeedFactor,
    device_rates,
    device_timing,
)
from hybridperf.projection.network import Library, Network, NetworkLink
from hybridperf.spelling import did_you_mean
from hybridperf.system.catalog import Accelerator, known_accelerators
from hybridperf.untrusted import DEVICES_CAP, DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.projection.device import DeviceRates
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = [
    "Accuracy",
    "LinkClass",
    "System",
    "accuracy_of",
    "find_link",
    "find_system",
    "known_systems",
    "read_system",
]

_FILE: Final = Path(__file__).with_suffix(".toml")
_GIGA: Final = 1e9

_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=DEVICES_CAP)]
_Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class LinkClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of link: its vendor's peak in one direction, and the bandwidth measured on it."""

    name: _Text
    peak_gb_per_s: _Positive
    achieved_gb_per_s: _Positive  #: bus bandwidth of an all-reduce of large tensors
    latency_us: _Share  #: latency of one step of a ring
    source: _Text

    def link(self, shared_by: int = 1) -> NetworkLink:
        """Return the link that collectives achieve, shared by ``shared_by`` devices."""
        return NetworkLink(self.latency_us / 1e6, self.achieved_gb_per_s * _GIGA, shared_by)


class Accuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of projected throughput: projected over measured throughput, less 1, absolute."""

    of: Literal["device model", "two plans", "profile", "fit"]
    median: _Share
    nine_in_ten: _Share  #: nine of ten errors are at most as large
    worst: _Share
    results: _Count  #: number of results that were projected
    source: _Text

    def range_s(self, seconds: float) -> tuple[float, float]:
        """Return the range that contains the measured time for nine of ten projected ``seconds``.

        The measured time is the projected time multiplied by 1 plus the error of throughput.
        """
        return max(0.0, seconds * (1 - self.nine_in_ten)), seconds * (1 + self.nine_in_ten)


class _SystemRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of node in TOML, with the names of its device and its links."""

    name: _Text
    device: _Text
    devices_per_node: _Count
    inside: _Text
    between: _Text
    adapters_per_node: _Count
    library: Library = "nccl"


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tables of a system file."""

    system: tuple[_SystemRow, ...] = ()
    link: tuple[LinkClass, ...] = ()
    accelerator: tuple[Accelerator, ...] = ()
    achieved: PeakShares | None = None
    layer: tuple[LayerOverhead, ...] = ()
    speed: tuple[SpeedFactor, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()


@dataclass(frozen=True, slots=True)
class System:
    """A kind of node, of which a plan may use several."""

    name: str
    device: Accelerator
    devices_per_node: int
    inside: LinkClass  #: link between the devices of a node
    between: LinkClass  #: link of one network adapter
    adapters_per_node: int
    rates: DeviceRates  #: rates that the device achieves
    library: Library = "nccl"  #: library of collectives
    accuracy: Accuracy | None = None  #: leave-one-out error of a fitted system

    @property
    def memory_bytes(self) -> int:
        """Return the capacity of one device's memory, with 10**9 bytes to the vendor's GB."""
        return round((self.device.memory_gb or 0.0) * _GIGA)

    @property
    def network(self) -> Network:
        """Return how the devices reach each other."""
        shared_by = max(1, math.ceil(self.devices_per_node / self.adapters_per_node))
        inside, between = self.inside.link(), self.between.link(shared_by)
        return Network(self.devices_per_node, inside, between, library=self.library)

    def timing(self, units: UnitTable, precision: str) -> UnitTiming:
        """Return the times of ``units`` on a device, computing in ``precision``.

        Raises:
            UserError: exit status 2 if the device has no peak in ``precision``.
        """
        return device_timing(self.device, units, precision, self.rates)


def find_system(name: str, others: Iterable[str] = ()) -> System:
    """Return the system ``name`` of the catalogue, or of the file at the path ``name``.

    A path contains a slash or ends in ``.toml``. Messages also offer the names ``others``.

    Raises:
        UserError: exit status 2 if there is no such system, or the file is not a system file.
    """
    if "/" in name or name.endswith(".toml"):
        return read_system(Path(name))
    for system in known_systems():
        if system.name == name:
            return system
    names = [*others, *(system.name for system in known_systems())]
    raise UserError.of(
        "projection.system",
        f"one of the systems {', '.join(names)}, or the path of a system file, FILE.toml",
        f"{name!r:.60}",
        did_you_mean(name, names) or "choose one of them",
    )


@functools.cache
def known_systems() -> tuple[System, ...]:
    """Return all systems in the catalogue."""
    return tuple(_system(row, _catalogue()) for row in _catalogue().system)


def read_system(path: Path) -> System:
    """Return the system of the system file at ``path``.

    Raises:
        UserError: exit status 2 if the file cannot be read or is not a system file.
    """
    try:
        content = read_bounded(path, DOCUMENT_CAP_BYTES)
    except (OSError, ValueError) as error:
        _refuse(path, reason(error))
    try:
        tables = msgspec.convert(tomllib.loads(content.decode()), _Tables)
    except RecursionError:
        _refuse(path, "tables nested too deep")
    except msgspec.ValidationError as error:
        _refuse(path, f"an invalid entry: {error!s:.300}")
    except ValueError as error:
        _refuse(path, f"invalid TOML: {error!s:.300}")
    if len(tables.system) != 1:
        _refuse(path, f"{len(tables.system)} tables [[system]] instead of one")
    try:
        return _system(tables.system[0], tables)
    except LookupError as error:
        _refuse(path, f"the name {error}, which neither the file nor the catalogue has")


def _refuse(path: Path, detail: str) -> NoReturn:
    expected = "a system file in the format of the catalogue (see docs/projection.md)"
    remedy = "correct it, or write one with 'hybridperf fit'"
    raise UserError.of("projection.system", expected, detail, remedy, path=str(path))


def _system(row: _SystemRow, tables: _Tables) -> System:
    """Return the system of a row; names refer to ``tables``, then to the catalogue.

    Raises:
        LookupError: with a name that neither has.
    """
    devices = {each.name: each for each in (*known_accelerators(), *tables.accelerator)}
    links = _links() | {link.name: link for link in tables.link}
    return System(
        name=row.name,
        device=devices[row.device],
        devices_per_node=row.devices_per_node,
        inside=links[row.inside],
        between=links[row.between],
        adapters_per_node=row.adapters_per_node,
        rates=device_rates(row.device, tables.achieved, tables.layer, tables.speed),
        library=row.library,
        accuracy=next((each for each in tables.accuracy if each.of == "fit"), None),
    )


def find_link(name: str) -> LinkClass:
    """Return the kind of link ``name`` of the catalogue.

    Raises:
        KeyError: if there is none.
    """
    return _links()[name]


def accuracy_of(kind: Literal["device model", "two plans", "profile"]) -> Accuracy:
    """Return the errors of projections of one ``kind``, with their source."""
    return next(each for each in _catalogue().accuracy if each.of == kind)


@functools.cache
def _links() -> dict[str, LinkClass]:
    return {link.name: link for link in _catalogue().link}


@functools.cache
def _catalogue() -> _Tables:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Tables)
