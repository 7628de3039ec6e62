from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hybridperf.system.accelerators import gpu_models, probe_accelerators

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    Put = Callable[[dict[str, str]], None]


def test_two_gpus_connected_by_nvlink(gpus: Path) -> None:
    found = probe_accelerators(gpus)
    assert (found["used"], found["driver"], found["driver_toolkit"]) == (2, "570.133.20", "13.2")
    assert found["gpus"][1] == {
        "name": "NVIDIA H200",
        "used": True,
        "compute_capability": "9.0",
        "memory_bytes": 144384 << 20,
        "sm_clock_max_hz": 1_980_000_000,
        "sm_clock_set_hz": 1_830_000_000,
        "memory_clock_max_hz": 3_201_000_000,
        "memory_clock_set_hz": 3_201_000_000,
        "power_limit_watts": 700.0,
        "pcie_generation": 5,
        "pcie_width": 16,
        "nvlink_links": 17,
        "mig": False,
    }
    assert found["pairs"] == [{"gpus": [0, 1], "nvlink": True, "nearest_common": "system"}]


def test_a_gpu_without_any_readable_value_is_counted(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", made_up_nvml(broken=0))
    found = probe_accelerators(gpus)
    assert found["used"] == 2
    assert found["gpus"][0]["name"] == "NVIDIA H200"
    assert set(found["gpus"][0].values()) == {"NVIDIA H200", True, "", None}
    assert found["gpus"][1]["memory_bytes"] == 144384 << 20
    assert found["pairs"] == [{"gpus": [0, 1], "nvlink": None, "nearest_common": ""}]


def test_a_mig_instance_counts_as_its_gpu(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Any
) -> None:
    library = made_up_nvml()
    uuid = library.nvmlDeviceGetUUID
    library.nvmlDeviceGetMigMode = lambda gpu: (int(gpu == 1), 0)
    library.nvmlDeviceGetMaxMigDeviceCount = lambda gpu: 2 if gpu == 1 else 0
    library.nvmlDeviceGetMigDeviceHandleByIndex = lambda gpu, index: ("part", gpu, index)
    library.nvmlDeviceGetUUID = lambda gpu: f"MIG-{gpu[2]}" if isinstance(gpu, tuple) else uuid(gpu)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    found = probe_accelerators(gpus)
    assert found["used"] == 1
    assert [(gpu["used"], gpu["mig"]) for gpu in found["gpus"]] == [(False, False), (True, True)]


def test_hidden_gpus_are_described_but_not_used(
    gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = probe_accelerators(gpus)
    assert found["used"] == 1
    assert [gpu["used"] for gpu in found["gpus"]] == [False, True]


def test_without_nvml_gpus_are_named_by_the_files_of_the_driver(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, put: Put
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    put({"proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t NVIDIA L4\n"})
    assert gpu_models(gpus) == ["NVIDIA L4"]
    found = probe_accelerators(gpus)
    assert (found["used"], found["gpus"][0]["name"], found["driver"]) == (1, "NVIDIA L4", "")


def test_a_driver_that_fails_to_initialise_has_no_gpus(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Any
) -> None:
    library = made_up_nvml()
    library.nvmlInit = None
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert probe_accelerators(gpus)["used"] == 0


def test_display_vendors_come_from_the_kernel(tree: Path, put: Put) -> None:
    put(
        {
            "sys/class/drm/card0/device/vendor": "0x1002",
            "sys/class/drm/card1/device/vendor": "0xffff",
        }
    )
    assert probe_accelerators(tree)["display_vendors"] == ["AMD"]
