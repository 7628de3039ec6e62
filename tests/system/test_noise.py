"""What other processes, a hypervisor and limits of devices do to a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest

from hybridperf.system.noise import BUSY_SHARE, GpuNoise, Noise, NoiseMeter, _own_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.system.conftest import Put


class Times(NamedTuple):
    """Seconds of a processor, as psutil names them."""

    user: float
    system: float
    idle: float
    iowait: float = 0.0
    steal: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


class Machine:
    """Two usable processors and one that is not, and the time of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processors = [Times(10, 5, 100), Times(0, 0, 100), Times(0, 0, 100)]
        self.own_s, self.clock_s = 3.0, 50.0
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(psutil, "cpu_times", lambda **_: self.processors)
        monkeypatch.setattr("hybridperf.system.noise._own_s", lambda: self.own_s)
        monkeypatch.setattr(time, "monotonic", lambda: self.clock_s)


def test_time_of_others_and_of_the_hypervisor_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    meter = NoiseMeter()

    # In ten seconds: 4 s of one usable processor and 3 s of the other, of it 1 s of a guest,
    # which the kernel counts twice; 2 s are stolen; 4 s are our own.
    machine.processors = [Times(14, 5, 104, steal=2), Times(3, 0, 107, guest=1), Times(10, 0, 100)]
    machine.own_s, machine.clock_s = 7.0, 60.0

    assert meter.read() == Noise(others=(4 + 3 - 4) / 20, steal=2 / 20)


def test_each_reading_begins_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    meter = NoiseMeter()
    machine.processors, machine.clock_s = [Times(20, 5, 100), *machine.processors[1:]], 60.0
    meter.read()

    machine.clock_s = 70.0

    assert meter.read() == Noise(others=0, steal=0)


def test_time_of_children_that_ended_is_our_own() -> None:
    code = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    before_s = _own_s()

    subprocess.run([sys.executable, "-c", code], check=True)

    assert _own_s() - before_s > 0.4


@pytest.mark.parametrize(
    ("noise", "reasons"),
    [
        (Noise(BUSY_SHARE, BUSY_SHARE, 0.5, (GpuNoise(0.9, 60, ("power",), 0),)), []),
        (Noise(0.48, 0), ["other processes used 48% of the processors"]),
        (Noise(0, 0.25), ["the hypervisor gave 25% of the processors to others"]),
        (
            Noise(0, 0, None, (GpuNoise(), GpuNoise(0.7, 91, ("power", "temperature"), 2))),
            ["2 other processes on GPU 1", "GPU 1 lowered its clock at 91 degrees Celsius"],
        ),
    ],
)
def test_reasons_for_a_busy_machine(noise: Noise, reasons: list[str]) -> None:
    assert noise.reasons() == reasons


def test_clocks_of_processors_and_gpus(
    tree: Path, put: Put, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Callable[..., Any]
) -> None:
    nvml = made_up_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    cpus = "sys/devices/system/cpu"
    put(
        {
            "proc/driver/nvidia/version": "NVRM",
            f"{cpus}/cpu0/cpufreq/scaling_cur_freq": "1500000",
            f"{cpus}/cpu0/cpufreq/cpuinfo_max_freq": "3000000",
            f"{cpus}/cpu1/cpufreq/scaling_cur_freq": "3000000",
            f"{cpus}/cpu1/cpufreq/cpuinfo_max_freq": "3000000",
        }
    )
    processes = {0: [os.getpid(), os.getppid()], 1: [2**31 - 1]}  # the last one runs nowhere
    nvml.nvmlDeviceGetClockInfo = lambda *_: 990
    nvml.nvmlDeviceGetTemperature = lambda *_: 55
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: [0x20 | 0x80, 0x1][gpu]
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [
        SimpleNamespace(pid=number) for number in processes[gpu]
    ]

    noise = NoiseMeter(tree).read()

    assert noise.clock == 0.75
    assert noise.gpus == (
        GpuNoise(0.5, 55, ("power", "temperature"), others=1),
        GpuNoise(0.5, 55, (), others=None),
    )


def test_what_a_device_does_not_tell_is_unknown(
    tree: Path, put: Put, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", made_up_nvml(broken=0))
    put({"proc/driver/nvidia/version": "NVRM"})

    noise = NoiseMeter(tree).read()

    assert (noise.clock, noise.gpus) == (None, (GpuNoise(), GpuNoise()))
