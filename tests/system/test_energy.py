"""Joules by counters that wrap, are reset, cannot be read, or do not exist."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.system import doctor
from hybridperf.system.doctor import examine_resources
from hybridperf.system.energy import Energy, EnergyMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.system.conftest import Put

DOMAINS = "sys/class/powercap"
XEON_UJ = 262_143_328_850  #: range of a package's counter: 2**32 units of 61 microjoules
EPYC_UJ = 65_532_610_987  #: of 15 microjoules


class Machine:
    """A machine of two packages and two GPUs, whose counters and clock a test sets."""

    def __init__(self, root: Path, put: Put, nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._put, self.nvml = root, put, nvml
        self.clock_s, self.gpus_mj = 100.0, {0: 5_000, 1: 2**40}
        put({"proc/driver/nvidia/version": "NVRM"})
        for number, other in ((0, 1), (1, 0)):
            # The kernel numbers domains as it finds them.
            self.domain(f"intel-rapl:{number}", f"package-{other}", XEON_UJ)
        self.domain("intel-rapl:0:0", "dram", XEON_UJ)
        self.domain("intel-rapl:2", "psys", XEON_UJ)
        self.domain("intel-rapl-mmio:0", "package-0", XEON_UJ)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(time, "monotonic", lambda: self.clock_s)
        nvml.nvmlDeviceGetTotalEnergyConsumption = lambda gpu: self.gpus_mj[gpu]

    def domain(self, name: str, device: str, range_uj: int, energy_uj: int = 0) -> None:
        folder = f"{DOMAINS}/{name}"
        self._put({f"{folder}/name": f"{device}\n", f"{folder}/energy_uj": f"{energy_uj}\n"})
        self._put({f"{folder}/max_energy_range_uj": f"{range_uj}\n"})

    def packages_uj(self, first: int, second: int) -> None:
        """Set the counters of package 0 and 1."""
        for domain, energy_uj in ((1, first), (0, second)):
            self._put({f"{DOMAINS}/intel-rapl:{domain}/energy_uj": f"{energy_uj}\n"})


@pytest.fixture
def machine(
    xeon: Path, put: Put, made_up_nvml: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return Machine(xeon, put, made_up_nvml(), monkeypatch)


@pytest.fixture
def meters() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def open_meter(machine: Machine, meters: contextlib.ExitStack) -> Callable[[], EnergyMeter]:
    return lambda: meters.enter_context(contextlib.closing(EnergyMeter(machine.root)))


def test_sums_of_intervals_equal_what_was_recorded(
    machine: Machine, open_meter: Callable[[], EnergyMeter]
) -> None:
    machine.packages_uj(1_000_000, 7)
    meter = open_meter()

    machine.packages_uj(151_000_000, 90_000_007)
    machine.gpus_mj, machine.clock_s = {0: 705_000, 1: 2**40 + 1}, 101.0
    first = meter.read()
    machine.packages_uj(151_500_000, 90_250_007)
    machine.gpus_mj, machine.clock_s = {0: 705_250, 1: 2**40 + 500_001}, 102.0
    second = meter.read()

    assert first.joules == {
        "powercap": {"package-1": 90.0, "package-0": 150.0},
        "nvml": {"gpu-0": 700.0, "gpu-1": 0.001},
    }
    assert second.joules == {
        "powercap": {"package-1": 0.25, "package-0": 0.5},
        "nvml": {"gpu-0": 0.25, "gpu-1": 500.0},
    }
    assert first.missing == second.missing == {}
    total = math.fsum(
        joules
        for each in (first, second)
        for devices in each.joules.values()
        for joules in devices.values()
    )
    assert total == math.fsum([150, 90, 700, 0.001, 0.5, 0.25, 0.25, 500])


def test_a_counter_that_wraps_goes_on(
    machine: Machine, open_meter: Callable[[], EnergyMeter]
) -> None:
    machine.packages_uj(XEON_UJ - 2_000_000, 0)
    meter = open_meter()

    machine.packages_uj(3_000_000, 1)
    machine.clock_s += 1

    energy = meter.read()
    assert energy.missing == {}
    assert energy.joules["powercap"] == {"package-1": 1e-6, "package-0": 5.0}


def test_counters_are_read_before_they_wrap_twice(
    machine: Machine, open_meter: Callable[[], EnergyMeter]
) -> None:
    machine.domain("intel-rapl:1", "package-0", EPYC_UJ)
    meter = open_meter()
    counted_uj = 0
    for _ in range(600):  # of a second, at 400 W: it wraps three times
        counted_uj += 400_000_000
        machine.packages_uj(counted_uj % EPYC_UJ, 0)
        machine.clock_s += 1
        meter.keep_up()

    energy = meter.read()

    assert counted_uj // EPYC_UJ == 3
    assert energy.joules["powercap"]["package-0"] == 600 * 400
    assert energy.missing == {}


def test_a_counter_that_may_have_wrapped_twice_is_missing(
    machine: Machine, open_meter: Callable[[], EnergyMeter]
) -> None:
    machine.domain("intel-rapl:1", "package-0", EPYC_UJ)
    meter = open_meter()

    machine.packages_uj(5_000_000, 5_000_000)
    machine.clock_s += 66  # 65 kJ at 1 kW

    energy = meter.read()
    assert energy.missing == {"package-0": "its counter was not read for 66 s"}
    assert energy.joules["powercap"] == {"package-1": 5.0}
    machine.packages_uj(6_000_000, 6_000_000)
    assert meter.read().joules["powercap"] == {"package-1": 1.0, "package-0": 1.0}


@pytest.mark.parametrize("kept_up", [False, True])
def test_a_device_that_is_reset_is_missing_in_that_interval_only(
    machine: Machine, open_meter: Callable[[], EnergyMeter], *, kept_up: bool
) -> None:
    machine.packages_uj(200_000_000_000, 0)
    meter = open_meter()

    machine.packages_uj(0, 10_000_000)  # no wrap: it would be 62 kJ in 11 s
    machine.gpus_mj[0], machine.clock_s = 40, 111.0
    if kept_up:
        meter.keep_up()
        machine.packages_uj(300_000_000, 10_000_000)
        machine.gpus_mj[0] = 6_000  # more than before it was reset

    energy = meter.read()
    assert energy.missing == dict.fromkeys(("package-0", "gpu-0"), "its counter was reset")
    assert energy.joules == {"powercap": {"package-1": 10.0}, "nvml": {"gpu-1": 0.0}}
    machine.packages_uj(301_000_000, 10_000_000)
    machine.gpus_mj[0] = 7_000
    assert meter.read().missing == {}


def test_a_package_without_a_domain_and_one_without_rights_are_missing(
    machine: Machine, open_meter: Callable[[], EnergyMeter]
) -> None:
    (machine.root / DOMAINS / "intel-rapl:0/name").unlink()
    (machine.root / DOMAINS / "intel-rapl:1/energy_uj").unlink()  # as if root alone could read it

    energy = open_meter().read()

    assert energy.missing == {
        "package-1": "no counter in /sys/class/powercap",
        "package-0": "its counter cannot be read",
    }
    assert energy.joules == {"nvml": {"gpu-0": 0.0, "gpu-1": 0.0}}


def test_a_gpu_without_a_counter_is_missing_and_others_than_the_visible_do_not_count(
    machine: Machine, open_meter: Callable[[], EnergyMeter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    del machine.nvml.nvmlDeviceGetTotalEnergyConsumption  # as before Volta

    energy = open_meter().read()

    assert energy.missing == {"gpu-0": "its counter cannot be read"}


def test_accelerators_that_no_library_reads_are_missing(
    machine: Machine, open_meter: Callable[[], EnergyMeter], put: Put, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    put({"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: NVIDIA H200\n"})

    energy = open_meter().read()

    assert energy.missing == {"accelerators": "no library that reads their counters"}


def test_a_machine_without_counters_says_so(tree: Path) -> None:
    with contextlib.closing(EnergyMeter(tree)) as meter:
        energy = meter.read()

    assert energy == Energy({}, {"package-0": "no counter in /sys/class/powercap"})
    assert Energy.from_table(energy.as_table()) == energy


@pytest.mark.parametrize(
    "table",
    [
        None,
        [],
        {"joules": 7},
        {"joules": {"nvml": {"gpu-0": -1}}},
        {"joules": {"nvml": {"gpu-0": "much"}}},
        {"joules": {"nvml": {"gpu-0": 1e300}}},
        {"missing": ["gpu-0"]},
    ],
)
def test_what_is_no_energy_is_none(table: object) -> None:
    assert Energy.from_table(table) is None


def test_the_doctor_says_what_reading_takes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_NOISE_S", 0)

    def examined() -> Any:
        found = examine_resources(tmp_path, machine.root)
        return next(each for each in found if each.name == "energy")

    assert examined().status == "ok"
    assert examined().detail == "package-1, package-0, gpu-0, gpu-1"
    (machine.root / DOMAINS / "intel-rapl:1/energy_uj").unlink()
    assert examined().status == "optional"
    assert examined().detail == "package-0: its counter cannot be read"
    assert "a group read /sys/class/powercap/*/energy_uj: since 2020" in examined().remedy
