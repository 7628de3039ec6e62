"""Examine this machine for the requirements of the benchmarks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from hybridperf.errors import UserError, missing_package
from hybridperf.system import files
from hybridperf.system.accelerators import probe_accelerators
from hybridperf.system.describe import gibibytes
from hybridperf.system.energy import EnergyMeter
from hybridperf.system.host import MIN_SHARED_MEMORY_BYTES, available_bytes, shared_memory_bytes
from hybridperf.system.landlock import landlock_abi, why_no_landlock
from hybridperf.system.namespaces import why_no_namespaces
from hybridperf.system.noise import NoiseMeter
from hybridperf.system.software import torch_release
from hybridperf.system.toolkit import has_driver, has_nvml, judge_toolkit
from hybridperf.tasks.data import check_data
from hybridperf.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.tasks.task import Data

__all__ = [
    "Diagnosis",
    "diagnose",
    "examine_graphics",
    "examine_packages",
    "examine_resources",
    "require_data",
]

_NEEDED: Final = "laptop"  #: tier of the tasks that run on any machine


def diagnose(out: Path | None = None) -> list[Diagnosis]:
    """Examine all requirements of a run with results in ``out``."""
    return [*examine_packages(), *_tasks(), *examine_resources(out), *examine_graphics()]


def _tasks() -> Iterator[Diagnosis]:
    for name in task_names():
        needed = name.endswith(f"/{_NEEDED}")
        try:
            data = find_task(name).data
            require_data(data)
        except UserError as error:
            detail, remedy = str(error), "reinstall hybridperf"
            if finding := error.finding:
                detail, remedy = f"needs {finding.expected}, found {finding.found}", finding.remedy
            yield Diagnosis(
                f"data of {name}",
                "missing" if needed else "optional",
                detail if needed else f"not here: {detail}",
                f"{remedy[:1].upper()}{remedy[1:]}.",
            )
        else:
            yield Diagnosis(f"data of {name}", "ok", data.source)


def require_data(data: Data) -> None:
    """Verify that the samples of ``data`` are on this machine.

    Raises:
        UserError: exit status 4 if they, or a package that reads them, are missing or damaged.
    """
    try:
        check_data(data)
    except ModuleNotFoundError as error:  # installed with an extra
        raise missing_package((error.name or "").partition(".")[0]) from error


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One requirement of a run: status, detail and remedy."""

    name: str
    status: Literal["ok", "missing", "optional"]  #: optional: missing, but runs work without it
    detail: str  #: finding in words
    remedy: str = ""  #: one sentence; empty if the status is ok


def _judge(
    name: str,
    good: bool,
    detail: str,
    remedy: str,
    *,
    needed: bool = True,
) -> Diagnosis:
    """Return ``ok`` if ``good``, else ``missing``, or ``optional`` if it is not ``needed``."""
    if good:
        return Diagnosis(name, "ok", detail)
    return Diagnosis(name, "missing" if needed else "optional", detail, remedy)


_PYTHON = (3, 11)
_PROJECT = "hybridperf"
_EXTRAS = ("", "train", "tables")  #: extras to examine; ``""``: required packages


class _Requirement(NamedTuple):
    name: str
    least: str  #: minimum version; ``""``: any
    extra: str = ""  #: extra of hybridperf; ``""``: always required

    @property
    def installed_with(self) -> str:
        """Return the argument of ``pip install``."""
        return f"{_PROJECT}[{self.extra}]" if self.extra else str(self)

    def __str__(self) -> str:
        return f"{self.name}>={self.least}" if self.least else self.name


def examine_packages() -> Iterator[Diagnosis]:
    """Examine Python and the required packages."""
    wanted = ".".join(map(str, _PYTHON))
    yield _judge(
        "Python",
        sys.version_info[:2] >= _PYTHON,
        f"{platform.python_implementation()} {platform.python_version()}",
        f"Install Python {wanted} or newer and run HybridPerf with it.",
    )
    for requirement in _requirements():
        yield _examine(requirement)


def _examine(requirement: _Requirement) -> Diagnosis:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return _judge(
        requirement.name,
        bool(version) and _release(version) >= _release(requirement.least),
        version or "not installed",
        f"Install it with: pip install '{requirement.installed_with}'.",
        needed=requirement.extra != "tables",
    )


def _requirements() -> list[_Requirement]:
    try:
        lines = importlib.metadata.requires(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        lines = _from_source_tree(Path(__file__).parents[3] / "pyproject.toml")
    wanted = [
        requirement
        for requirement in map(_parse, lines or [])
        if requirement.extra in _EXTRAS and requirement.name != _PROJECT
    ]
    # Metadata repeats the extra tables in the extra train, which includes it.
    wanted.sort(key=lambda each: _EXTRAS.index(each.extra))
    return list({each.name: each for each in wanted}.values())


def _from_source_tree(path: Path) -> list[str]:
    try:
        project = tomllib.loads(path.read_text()).get("project", {})
    except (OSError, ValueError):
        return []
    extras = project.get("optional-dependencies", {})
    of_extras = [f"{line}; extra == '{extra}'" for extra in extras for line in extras[extra]]
    return [*project.get("dependencies", []), *of_extras]


def _parse(line: str) -> _Requirement:
    name = re.match(r"[A-Za-z0-9._-]+", line)
    least = re.search(r">=\s*([0-9.]+)", line)
    extra = re.search(r"extra == ['\"](\w+)['\"]", line)
    return _Requirement(
        name[0] if name else line, least[1] if least else "", extra[1] if extra else ""
    )


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


_GIB = 1 << 30
_LEAST_DISK_BYTES = _GIB
_RANKS = 4  # the largest plan of the laptop tasks
_RANK_BYTES = _GIB
_NOISE_S: Final = 1.0  #: interval in which noise is measured
# Clock sources read without a system call; the rest take a microsecond or more.
_FAST_CLOCKS = {"arch_sys_counter", "hyperv_clocksource_tsc_page", "kvm-clock", "timebase", "tsc"}


def examine_resources(out: Path | None = None, root: Path = Path("/")) -> Iterator[Diagnosis]:
    """Examine output folder (default: working folder), memory, loopback and clock."""
    folder = (out or Path()).absolute()
    # A run creates the folder, so its nearest existing parent is examined.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    yield _writable(folder)
    yield _disk(folder)
    yield _memory(root)
    yield _shared_memory(root)
    yield _loopback()
    yield _sandbox()
    yield _clock(root)
    yield _noise(root)
    yield _energy(root)


def _writable(folder: Path) -> Diagnosis:
    try:
        with tempfile.TemporaryFile(dir=folder):
            problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return _judge(
        "output folder",
        not problem,
        f"cannot write: {problem}" if problem else "writable",
        "Choose a folder that you may write to with --out, or change its permissions.",
    )


def _disk(folder: Path) -> Diagnosis:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = 0
    return _judge(
        "free disk",
        free >= _LEAST_DISK_BYTES,
        gibibytes(free) or "none",
        f"Free {gibibytes(_LEAST_DISK_BYTES)} or choose another disk with --out.",
    )


def _memory(root: Path) -> Diagnosis:
    free = available_bytes(root)
    return _judge(
        "memory",
        free is None or free >= _RANKS * _RANK_BYTES,
        "unknown" if free is None else f"{gibibytes(free)} available",
        f"Run plans of fewer than {_RANKS} ranks, or free {gibibytes(_RANK_BYTES)} for each.",
        needed=False,
    )


def _shared_memory(root: Path) -> Diagnosis:
    size = shared_memory_bytes(root)
    return _judge(
        "shared memory",
        size >= MIN_SHARED_MEMORY_BYTES,
        gibibytes(size) or "none",
        "Start the container with --shm-size=1g: data loaders and NCCL share memory there.",
        needed=False,
    )


def _loopback() -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return _judge(
        "loopback network",
        not problem,
        problem or "ranks can meet on this machine",
        "Bring the loopback interface up with 'ip link set lo up', or allow it in the sandbox.",
    )


def _sandbox() -> Diagnosis:
    reason, shared = why_no_landlock(), why_no_namespaces()
    detail = f"Landlock, ABI {landlock_abi()}, "
    detail += f"no namespaces: {shared}" if shared else "and namespaces"
    return _judge(
        "sandbox",
        not reason,
        reason or detail,
        "Use Linux 6.12 or newer with Landlock, and in a container allow its system calls: "
        "results of runs without a sandbox prove less.",
        needed=False,
    )


def _clock(root: Path) -> Diagnosis:
    facts = time.get_clock_info("monotonic")
    name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = files.text(root / name) or "unknown"
    return _judge(
        "clock",
        facts.monotonic and source in _FAST_CLOCKS,
        f"monotonic, source {source}" if facts.monotonic else "not monotonic",
        "Choose a faster clock source, such as clocksource=tsc on the kernel's command line.",
        needed=not facts.monotonic,
    )


def _noise(root: Path) -> Diagnosis:
    noise = NoiseMeter(root).read(_NOISE_S)
    reasons = ", ".join(noise.reasons())
    return _judge(
        "noise",
        not reasons,
        f"busy machine: {reasons}" if reasons else f"other processes use {noise.others:.0%}",
        "End what else runs here before measuring; results say 'busy machine' otherwise.",
        needed=False,
    )


def _energy(root: Path) -> Diagnosis:
    with contextlib.closing(EnergyMeter(root)) as meter:
        energy = meter.read()
    counted = [device for devices in energy.joules.values() for device in devices]
    lacking = [f"{device}: {why}" for device, why in energy.missing.items()]
    return _judge(
        "energy",
        not lacking,
        ", ".join(lacking or counted),
        "Measure as root, or let a group read /sys/class/powercap/*/energy_uj: since 2020 RAPL is "
        "for root alone; results state joules only where each device has a counter, which virtual "
        "machines have not.",
        needed=False,
    )


def examine_graphics(root: Path = Path("/")) -> Iterator[Diagnosis]:
    """Examine driver, packages and visible GPUs; without GPUs, runs use processor cores."""
    found = probe_accelerators(root)
    count = found["used"]
    if has_driver(root):
        yield _judge(
            "nvidia-ml-py",
            has_nvml(),
            "installed" if has_nvml() else "not installed",
            "Install it with 'pip install nvidia-ml-py' to describe the GPUs fully.",
            needed=False,
        )
    if not count:
        yield Diagnosis("GPUs", "ok", "none visible; runs use the processor cores")
        return
    fits, detail, remedy = judge_toolkit(count, torch_release()["toolkit"], found["driver_toolkit"])
    yield _judge("GPUs", fits, detail, remedy)
