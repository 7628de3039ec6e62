"""Made-up machines: trees of /proc and /sys, and a made-up NVIDIA management library."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.system import accelerators, doctor, software
from hybridperf.system.software import TorchRelease

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty root folder; `put` and `link` put files and links into it."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def put(tree: Path) -> Put:
    def put_files(files: dict[str, str]) -> None:
        for name, content in files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return put_files


@pytest.fixture
def link(tree: Path) -> Callable[[str, str], None]:
    def put_link(name: str, target: str) -> None:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return put_link


@pytest.fixture
def xeon(tree: Path, put: Put) -> Path:
    """Two sockets of two cores of two threads, one memory domain each."""
    cpus = "sys/devices/system/cpu"
    blocks = []
    for cpu in range(8):
        socket, core = cpu // 2 % 2, cpu % 4
        siblings = f"{core},{core + 4}"
        put(
            {
                f"{cpus}/cpu{cpu}/topology/thread_siblings_list": siblings + "\n",
                f"{cpus}/cpu{cpu}/topology/physical_package_id": f"{socket}\n",
                f"{cpus}/cpu{cpu}/cpufreq/cpuinfo_max_freq": "3500000\n",
            }
        )
        caches = (
            (0, 1, "Data", "48K", siblings),
            (1, 1, "Instruction", "32K", siblings),
            (2, 2, "Unified", "2048K", siblings),
            (3, 3, "Unified", "60M", "0-1,4-5" if socket == 0 else "2-3,6-7"),
        )
        for index, level, kind, size, shared in caches:
            folder = f"{cpus}/cpu{cpu}/cache/index{index}"
            put(
                {
                    f"{folder}/level": f"{level}\n",
                    f"{folder}/type": kind,
                    f"{folder}/size": size,
                    f"{folder}/shared_cpu_list": shared,
                }
            )
        blocks.append(
            f"processor\t: {cpu}\nmodel name\t: Intel(R) Xeon(R)  Platinum 8480+ CPU @ 2.00GHz\n"
            "flags\t\t: fpu vme avx512f\n"
        )
    put(
        {
            "proc/cpuinfo": "\n".join(blocks),
            "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 1024 kB\n",
            "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n",
            "proc/self/cgroup": "0::/user.slice\n",
            "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "proc/sys/kernel/arch": "x86_64\n",
            f"{cpus}/online": "0-7\n",
            "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
            "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
            "etc/os-release": 'NAME="Ubuntu"\nVERSION_ID="24.04"\nPRETTY_NAME="Golden image"\n',
        }
    )
    return tree


@pytest.fixture
def arm(tree: Path, put: Put) -> Path:
    """An Arm machine, whose kernel gives numbers for names and no topology."""
    block = "processor\t: {}\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    put(
        {
            "proc/cpuinfo": "\n".join(block.format(cpu) for cpu in range(4)),
            "proc/sys/kernel/arch": "aarch64",
        }
    )
    return tree


def _nvml(*, broken: int | None = None) -> Any:
    """Two GPUs joined by NVLink; a ``broken`` one answers nothing but its name."""

    class NVMLError(Exception):
        pass

    def sound(function: Any) -> Any:
        def guarded(gpu: int, *arguments: Any) -> Any:
            if gpu == broken:
                raise NVMLError
            return function(gpu, *arguments)

        return guarded

    def link_state(_: int, link: int) -> int:
        if link >= 18:
            raise NVMLError
        return int(link != 17)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}1b2c3d4-aaaa-bbbb-cccc-1234567890ab",
        nvmlDeviceGetSerial=lambda _: "1653823004711",
        nvmlSystemGetDriverVersion=lambda: "570.133.20",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13020,
        nvmlDeviceGetMemoryInfo=sound(lambda _: SimpleNamespace(total=144384 << 20, free=7)),
        nvmlDeviceGetMaxClockInfo=sound(lambda _, clock: {1: 1980, 2: 3201}[clock]),
        nvmlDeviceGetApplicationsClock=sound(lambda _, clock: {1: 1830, 2: 3201}[clock]),
        nvmlDeviceGetPowerManagementLimit=sound(lambda _: 700_000),
        nvmlDeviceGetMaxPcieLinkGeneration=sound(lambda _: 5),
        nvmlDeviceGetMaxPcieLinkWidth=sound(lambda _: 16),
        nvmlDeviceGetCudaComputeCapability=sound(lambda _: (9, 0)),
        nvmlDeviceGetMigMode=sound(lambda _: (0, 0)),
        nvmlDeviceGetMaxMigDeviceCount=sound(lambda _: 0),
        nvmlDeviceGetNvLinkState=sound(link_state),
        nvmlDeviceGetP2PStatus=sound(lambda *_: 0),
        nvmlDeviceGetTopologyCommonAncestor=sound(lambda *_: 50),
    )


@pytest.fixture
def made_up_nvml() -> Callable[..., Any]:
    return _nvml


@pytest.fixture
def gpus(
    xeon: Path, put: Put, set_torch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The two sockets, with two GPUs and a PyTorch that is built for them."""
    put({"proc/driver/nvidia/version": "NVRM version"})
    monkeypatch.setitem(sys.modules, "pynvml", _nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    set_torch(toolkit="13.2")
    return xeon


@pytest.fixture
def set_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes all modules believe in a PyTorch."""

    def believe(*, toolkit: str, version: str = "2.15.0") -> None:
        release = TorchRelease(
            version=version, toolkit=toolkit, hip="", xpu="", git_version="", debug=False
        )
        for module in (accelerators, doctor, software):
            monkeypatch.setattr(module, "torch_release", lambda: release)

    return believe
