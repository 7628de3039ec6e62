from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import NAME
from hybridperf.system.describe import (
    count_texts,
    describe,
    entry_name,
    gibibytes,
    show,
    system_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]
    SetTorch = Callable[..., None]

_FIELDS = [
    "submitter",
    "division",
    "status",
    "system_name",
    "number_of_nodes",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_processor_frequency",
    "host_processor_caches",
    "host_processor_interconnect",
    "host_memory_capacity",
    "host_storage_type",
    "host_storage_capacity",
    "host_networking",
    "host_networking_topology",
    "host_memory_configuration",
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_host_interconnect",
    "accelerator_frequency",
    "accelerator_on-chip_memories",
    "accelerator_memory_configuration",
    "accelerator_memory_capacity",
    "accelerator_interconnect",
    "accelerator_interconnect_topology",
    "cooling",
    "hw_notes",
    "framework",
    "other_software_stack",
    "operating_system",
    "sw_notes",
]


def test_all_fields_are_mlperf_strings_except_hybridperf(tree: Path) -> None:
    found = describe(tree)
    assert sorted(found) == sorted([*_FIELDS, "hybridperf"])
    assert len(_FIELDS) == 33
    assert all(isinstance(found[name], str) for name in _FIELDS)


def test_descriptions_are_deterministic_and_json_serialisable() -> None:
    first = describe()
    assert first == describe()
    assert json.loads(json.dumps(first)) == first


def test_an_empty_machine_is_described_by_empty_fields(
    tree: Path, monkeypatch: pytest.MonkeyPatch, set_torch: SetTorch
) -> None:
    set_torch(toolkit="", version="")
    found = describe(tree)
    filled = {name for name in _FIELDS if found[name]}
    assert filled <= {
        "number_of_nodes",
        "accelerators_per_node",
        "other_software_stack",  # Python itself
        "operating_system",
    }


def test_fields_of_a_machine_with_two_gpus(gpus: Path, put: Put) -> None:
    put({"sys/block/nvme0n1/size": str(1 << 31)})
    found = describe(gpus)
    expected = {
        "host_processors_per_node": "2",
        "host_processor_core_count": "2",
        "host_processor_vcpu_count": "",
        "host_processor_frequency": "3.5 GHz",
        "host_processor_caches": "L1d 4x 48 KiB, L1i 4x 32 KiB, L2 4x 2 MiB, L3 2x 60 MiB",
        "host_memory_capacity": "16 GiB",
        "host_storage_type": "NVMe",
        "host_storage_capacity": "1x 1024 GiB",
        "accelerators_per_node": "2",
        "accelerator_model_name": "NVIDIA H200",
        "accelerator_host_interconnect": "2x PCIe 5.0 x16",
        "accelerator_frequency": "1980 MHz",
        "accelerator_memory_capacity": "141 GiB",
        "accelerator_interconnect": "NVLink, 17 links",
        "accelerator_interconnect_topology": "NVLink joins 1 of 1 pairs",
        "framework": "PyTorch 2.15.0",
        "operating_system": "Ubuntu 24.04",
    }
    assert {name: found[name] for name in expected} == expected
    assert "CUDA 13.2" in str(found["other_software_stack"])
    assert "NVIDIA driver 570.133.20, Linux 6.8.0-45-generic" in str(found["other_software_stack"])


def test_virtual_machines_count_their_virtual_processors(tree: Path, put: Put) -> None:
    put({"proc/cpuinfo": "processor : 0\nflags : hypervisor\n\nprocessor : 1\n"})
    assert describe(tree)["host_processor_vcpu_count"] == "2"


def test_sizes_and_counts_are_formatted() -> None:
    assert count_texts(["a", "b", "a", ""]) == "2x a, 1x b"
    assert (gibibytes(None), gibibytes(3 << 29), gibibytes(1 << 40)) == ("", "1.5 GiB", "1024 GiB")


@pytest.mark.parametrize(
    ("model", "cores", "name"),
    [
        ("AMD EPYC", 2, "2c-amd-epyc"),
        ("AMD EPYC 7742 64-Core Processor", 128, "128c-amd-epyc-7742"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", 4, "4c-intel-xeon"),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", 4, "4c-intel-core-i7-8550u"),
        ("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", 8, "8c-amd-ryzen-7-7840u"),
        ("", 1, "1c-aarch64"),
        ("\u9f8d\u82af", 1, "1c-aarch64"),
        ("x" * 99, 1, "1c-" + "x" * 61),
    ],
)
def test_names_of_systems_without_accelerators(model: str, cores: int, name: str) -> None:
    processor = {"model": model, "usable_cores": cores, "architecture": "aarch64"}
    machine = {"processor": processor, "accelerators": {"used": 0, "gpus": []}}
    assert system_name({"hybridperf": machine}) == name


def test_names_of_systems_with_accelerators(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert system_name(describe(gpus)) == "2x-nvidia-h200"
    assert system_name(describe(gpus, nodes=4)) == "4nodes-2x-nvidia-h200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert system_name(describe(gpus)) == "1x-nvidia-h200"


def test_long_entry_names_are_truncated_and_stay_unique() -> None:
    plans = [f"dp2-zero3-tp2-sp-pp2-interleaved-stages{n}-m4-rfull-bf16-compile" for n in (2, 3)]
    names = [entry_name("8x-nvidia-h200", plan) for plan in plans]

    assert entry_name("8x-nvidia-h200", "dp2") == "8x-nvidia-h200-dp2"
    assert len(entry_name("8x-nvidia-h200", "p" * 49)) == 64
    assert names == [entry_name("8x-nvidia-h200", plan) for plan in plans]
    assert len(set(names)) == 2
    assert all(NAME.fullmatch(name) and name.startswith("8x-nvidia-h200-dp2") for name in names)


def test_only_known_values_have_rows(gpus: Path) -> None:
    rows = dict(show(describe(gpus) | {"system_name": "mine"}))
    assert rows["system"] == "mine"
    assert rows["accelerators"] == "2x NVIDIA H200 141 GiB"
    assert rows["cores"] == "4 usable, 4 physical, 8 logical, 2 sockets, 2 NUMA nodes"
    assert rows["operating system"] == "Ubuntu 24.04 6.8.0-45-generic"
    assert "container" not in rows
    assert all(rows.values())


def test_a_limit_on_memory_is_shown(xeon: Path, put: Put) -> None:
    assert "usable memory" not in dict(show(describe(xeon)))
    put({"sys/fs/cgroup/memory.max": str(2 << 30)})
    assert dict(show(describe(xeon)))["usable memory"] == "2 GiB"


def test_torch_is_never_imported() -> None:
    code = """
import sys
from hybridperf.system import accelerators, describe, doctor
found = describe.describe()
describe.system_name(found), describe.show(found), accelerators.usable_devices(), doctor.diagnose()
print([module for module in ("torch", "numpy", "sklearn") if module in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
