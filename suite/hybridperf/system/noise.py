"""Noise: what, besides the measured processes, used or slowed this machine in an interval.

Processor time of others is what the kernel counts as busy on the usable processors, less the time
of this process and its descendants. Time stolen by a hypervisor is counted apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
import psutil

from hybridperf.system import files
from hybridperf.system.toolkit import nvml_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.system.toolkit import Nvml

__all__ = ["BUSY_SHARE", "GpuNoise", "Noise", "NoiseMeter"]

Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: share of the usable processors from which others make a machine busy; two quiet cores show 0.01
BUSY_SHARE: Final = 0.1
#: bits of nvmlClocksThrottleReasons, by software and by hardware
_LIMITS: Final = {"power": 0x04 | 0x80, "temperature": 0x20 | 0x40}
_SM_CLOCK: Final = 1  #: NVML_CLOCK_SM
_GPU_SENSOR: Final = 0  #: NVML_TEMPERATURE_GPU


@dataclass(frozen=True, slots=True)
class GpuNoise:
    """State of a GPU at the end of the interval; None or empty: unknown."""

    clock: float | None = None  #: clock of its processors over their maximum clock
    temperature_c: int | None = None
    slowed_by: tuple[str, ...] = ()  #: limits that lower the clock: ``power``, ``temperature``
    others: int | None = None  #: compute processes that are not of this measurement


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of an interval; None: unknown."""

    others: Share  #: share of the usable processors' time used by other processes
    steal: Share  #: share of that time that a hypervisor gave to other machines
    clock: float | None = None  #: mean clock of the usable processors over their maximum clock
    gpus: tuple[GpuNoise, ...] = ()

    @classmethod
    def from_table(cls, table: object) -> Noise:
        """Return the noise that a log states as ``table``; what is not a noise is quiet."""
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert({"others": 0.0, "steal": 0.0} | _object(table), cls)
        return cls(0.0, 0.0)

    def as_table(self) -> dict[str, object]:
        """Return the known values, for the log."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    def reasons(self) -> list[str]:
        """Return why the machine counts as busy, as phrases; nothing on a quiet machine."""
        return [*self._reasons()]

    def _reasons(self) -> Iterator[str]:
        if self.others > BUSY_SHARE:
            yield f"other processes used {self.others:.0%} of the processors"
        if self.steal > BUSY_SHARE:
            yield f"the hypervisor gave {self.steal:.0%} of the processors to others"
        for number, gpu in enumerate(self.gpus):
            if gpu.others:
                yield f"{gpu.others} other processes on GPU {number}"
            if "temperature" in gpu.slowed_by:
                yield f"GPU {number} lowered its clock at {gpu.temperature_c} degrees Celsius"


def _object(table: object) -> dict[str, object]:
    return table if isinstance(table, dict) else {}


class _Times(NamedTuple):
    clock_s: float
    busy_s: float  # of the usable processors, without stolen time
    stolen_s: float
    own_s: float  # of this process and its descendants


@dataclass(slots=True)
class NoiseMeter:
    """Measures noise between its creation, or its last reading, and a reading."""

    root: Path = Path("/")
    _before: _Times = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first interval."""
        self._before = _read_times()

    def read(self, least_s: float = 0.0) -> Noise:
        """Return the noise since the last reading, and begin another interval.

        Waits until the interval has lasted ``least_s``: the kernel counts in steps of 10 ms.
        """
        time.sleep(max(0.0, self._before.clock_s + least_s - time.monotonic()))
        before, self._before = self._before, _read_times()
        after = self._before
        processors = len(os.sched_getaffinity(0))
        available_s = max(after.clock_s - before.clock_s, 1e-6) * processors
        others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
        return Noise(
            others=_share(others_s, available_s),
            steal=_share(after.stolen_s - before.stolen_s, available_s),
            clock=_clock(self.root),
            gpus=_gpus(self.root),
        )


def _share(part_s: float, whole_s: float) -> float:
    return round(min(1.0, max(0.0, part_s / whole_s)), 3)


def _read_times() -> _Times:
    usable = os.sched_getaffinity(0)
    busy_s = stolen_s = 0.0
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in usable:
            waited_s = times.idle + times.iowait + times.steal
            # Time of guests is part of the user's time already.
            busy_s += sum(times) - waited_s - times.guest - times.guest_nice
            stolen_s += times.steal
    return _Times(time.monotonic(), busy_s, stolen_s, _own_s())


def _own_s() -> float:
    """Return the processor time of this process and all descendants, also of those that ended."""
    own_s = 0.0
    for process in _own_processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            times = process.cpu_times()
            own_s += times.user + times.system + times.children_user + times.children_system
    return own_s


def _own_processes() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _clock(root: Path) -> float | None:
    """Return the mean ratio of current to maximum clock of the usable processors."""
    ratios = []
    for cpu in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        current = files.integer(folder / "scaling_cur_freq")
        if current and (highest := files.integer(folder / "cpuinfo_max_freq")):
            ratios.append(current / highest)
    return round(sum(ratios) / len(ratios), 3) if ratios else None


def _gpus(root: Path) -> tuple[GpuNoise, ...]:
    """Return the state of the GPUs that processes of this measurement may use."""
    with nvml_session(root) as library:
        if library is None:
            return ()
        own = {process.pid for process in _own_processes()}
        return tuple(_gpu(library, handle, own) for handle in library.handles())


def _gpu(library: Nvml, handle: Any, own: set[int]) -> GpuNoise:
    clock = library.whole("DeviceGetClockInfo", handle, _SM_CLOCK)
    highest = library.whole("DeviceGetMaxClockInfo", handle, _SM_CLOCK)
    limits = library.whole("DeviceGetCurrentClocksThrottleReasons", handle) or 0
    return GpuNoise(
        clock=round(clock / highest, 3) if clock and highest else None,
        temperature_c=library.whole("DeviceGetTemperature", handle, _GPU_SENSOR),
        slowed_by=tuple(name for name, mask in _LIMITS.items() if limits & mask),
        others=_others(library.call("DeviceGetComputeRunningProcesses", handle), own),
    )


def _others(processes: Any, own: set[int]) -> int | None:
    """Return how many of a GPU's processes are not ``own``; None if their numbers say nothing."""
    if processes is None:
        return None
    numbers = {process.pid for process in processes}
    # In a container NVML states the numbers that processes have outside.
    return len(numbers - own) if all(map(psutil.pid_exists, numbers)) else None
