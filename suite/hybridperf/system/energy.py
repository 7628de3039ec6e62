"""Energy: the joules that counters of the hardware state for an interval, device by device.

RAPL counts each package of the processors, and NVML each GPU from Volta on, whoever uses them. A
device without a counter, or whose counter cannot be trusted in the interval, is missing: no energy
is estimated from a rated power. Sources: Documentation/power/powercap/powercap.rst of Linux, and
nvmlDeviceGetTotalEnergyConsumption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self, TypeAlias

import msgspec

from hybridperf.system import files
from hybridperf.system.accelerators import gpu_models, usable_devices, visible_handles
from hybridperf.system.host import processor_packages
from hybridperf.system.toolkit import nvml_session
from hybridperf.untrusted import NUMBER_CAP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.system.toolkit import Nvml

__all__ = ["Energy", "EnergyMeter"]

Joules: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=NUMBER_CAP)]
_POWERCAP: Final = "sys/class/powercap"
_PACKAGE: Final = re.compile(r"package-(\d{1,5})(-die-\d{1,5})?")
#: more than a package can draw: bounds what a counter that wraps can have counted meanwhile
_MOST_WATTS: Final = 1000
_SLACK_S: Final = 1.0  #: counters are updated with a delay
#: between two readings; the counters of smallest range, 65 kJ, could wrap twice in 65 s
_KEEP_UP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of a machine's devices in an interval."""

    joules: dict[str, dict[str, Joules]] = field(default_factory=dict)
    #: by source, ``powercap`` or ``nvml``, and device, such as ``package-0`` or ``gpu-0``
    missing: dict[str, str] = field(default_factory=dict)  #: why a device has none, by device

    @classmethod
    def from_table(cls, table: object) -> Self | None:
        """Return the energy that a log states as ``table``; None if it is none."""
        try:
            return msgspec.convert(table, cls)
        except msgspec.ValidationError:
            return None

    def as_table(self) -> dict[str, object]:
        """Return the energy for the log; nothing is left out."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class _Counter:
    """A counter of energy, and what it has counted in the current interval."""

    source: str
    device: str
    per_joule: int  #: units of the counter in a joule
    read: Callable[[], int | None]
    highest: int | None = None  #: value after which it begins again at 0; None if it never does
    counted: int = 0
    doubt: str = ""  #: why the interval's energy is unknown
    _last: int | None = None
    _last_s: float = 0.0

    def step(self) -> None:
        """Add what was counted since the last step."""
        before, before_s = self._last, self._last_s
        self._last, self._last_s = self.read(), time.monotonic()
        if before is None or self._last is None:
            self.doubt = self.doubt or "its counter cannot be read"
            return
        counted, elapsed_s = self._last - before, self._last_s - before_s
        if self.highest is not None:
            counted += self.highest if counted < 0 else 0
            most = _MOST_WATTS * self.per_joule
            if elapsed_s * most > self.highest:
                self.doubt = self.doubt or f"its counter was not read for {elapsed_s:.0f} s"
            elif counted > (elapsed_s + _SLACK_S) * most:  # no wrap, but a new start
                counted = -1
        if counted < 0:
            self.doubt = self.doubt or "its counter was reset"
        self.counted += counted


class EnergyMeter:
    """Measures energy between its creation, or its last reading, and a reading.

    All packages of the machine count, and all GPUs that are visible to this process.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._open = contextlib.ExitStack()
        library = self._open.enter_context(nvml_session(root))
        self._counters = [*_packages(root), *_gpus(library)]
        self._absent = dict(_absent(root, {counter.device for counter in self._counters}))
        self._read_s = 0.0
        self.read()

    def close(self) -> None:
        """Release NVML."""
        self._open.close()

    def read(self) -> Energy:
        """Return the energy since the last reading, and begin another interval."""
        self._step()
        joules: dict[str, dict[str, float]] = defaultdict(dict)
        missing = dict(self._absent)
        for counter in self._counters:
            if counter.doubt:
                missing[counter.device] = counter.doubt
            else:
                joules[counter.source][counter.device] = counter.counted / counter.per_joule
            counter.counted, counter.doubt = 0, ""
        return Energy(dict(joules), missing)

    def keep_up(self) -> None:
        """Read the counters before one of them can wrap twice; to be called every few seconds."""
        if time.monotonic() - self._read_s > _KEEP_UP_S:
            self._step()

    def _step(self) -> None:
        self._read_s = time.monotonic()
        for counter in self._counters:
            counter.step()


def _packages(root: Path) -> Iterator[_Counter]:
    # Domains of intel-rapl-mmio are those of intel-rapl once more.
    for domain in files.children(root / _POWERCAP, "intel-rapl:*"):
        name = files.text(domain / "name")
        if _PACKAGE.fullmatch(name):
            read = functools.partial(files.integer, domain / "energy_uj")
            most = files.integer(domain / "max_energy_range_uj")
            yield _Counter("powercap", name, 10**6, read, most)


def _gpus(library: Nvml | None) -> Iterator[_Counter]:
    if library is None:
        return
    # The instances of a GPU (MIG) share its counter.
    boards = {
        library.text("DeviceGetUUID", handle) or str(place): handle
        for place, handle in enumerate(visible_handles(library))
    }
    for number, handle in enumerate(boards.values()):
        read = functools.partial(library.whole, "DeviceGetTotalEnergyConsumption", handle)
        yield _Counter("nvml", f"gpu-{number}", 10**3, read)


def _absent(root: Path, counted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the devices without a counter, and why."""
    known = {int(name[1]) for name in map(_PACKAGE.fullmatch, counted) if name}
    for number in sorted((processor_packages(root) or {0}) - known):
        yield f"package-{number}", f"no counter in /{_POWERCAP}"
    if not any(name.startswith("gpu-") for name in counted) and (
        gpu_models(root) or usable_devices(root).kind == "gpu"
    ):
        yield "accelerators", "no library that reads their counters"
