from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from hybridperf.system.host import probe_processor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]


def test_two_sockets_with_threads_and_numa_nodes(xeon: Path) -> None:
    found = probe_processor(xeon)
    assert found["model"] == "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz"
    assert (found["sockets"], found["physical_cores"], found["logical_cpus"]) == (2, 4, 8)
    assert (found["usable_cores"], found["usable_logical_cpus"]) == (4, 8)
    assert found["max_clock_hz"] == 3_500_000_000
    assert found["caches"] == [
        {"name": "L1d", "size_bytes": 48 << 10, "count": 4},
        {"name": "L1i", "size_bytes": 32 << 10, "count": 4},
        {"name": "L2", "size_bytes": 2 << 20, "count": 4},
        {"name": "L3", "size_bytes": 60 << 20, "count": 2},
    ]
    assert found["numa_nodes"] == [
        {"node": 0, "logical_cpus": [0, 1, 4, 5]},
        {"node": 1, "logical_cpus": [2, 3, 6, 7]},
    ]


def test_affinity_is_counted_in_cores_not_threads(xeon: Path, put: Put) -> None:
    put({"proc/self/status": "Cpus_allowed_list:\t0,1,4\n"})
    found = probe_processor(xeon)
    assert (found["usable_cores"], found["usable_logical_cpus"]) == (2, 3)


def test_a_cpu_quota_limits_the_cores_to_at_least_one(xeon: Path, put: Put) -> None:
    put({"sys/fs/cgroup/cpu.max": "250000 100000\n"})
    assert probe_processor(xeon)["usable_cores"] == 2
    put({"sys/fs/cgroup/user.slice/cpu.max": "50000 100000\n"})
    assert probe_processor(xeon)["usable_cores"] == 1


def test_arm_without_model_name_and_topology(arm: Path) -> None:
    found = probe_processor(arm)
    assert (found["model"], found["architecture"]) == ("Arm Neoverse-N1", "aarch64")
    assert (found["sockets"], found["physical_cores"]) == (None, None)
    assert (found["logical_cpus"], found["usable_cores"]) == (4, 4)
    assert (found["caches"], found["numa_nodes"], found["max_clock_hz"]) == ([], [], None)


def test_an_unknown_arm_part_has_no_model_name(arm: Path, put: Put) -> None:
    put({"proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xfff\n"})
    assert probe_processor(arm)["model"] == ""


def test_sockets_numbered_minus_one_are_unknown(xeon: Path, put: Put) -> None:
    for cpu in range(8):
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        put({name: "-1\n"})
    assert probe_processor(xeon)["sockets"] is None


def test_an_unreadable_system_has_one_core(tree: Path) -> None:
    found = probe_processor(tree)
    assert (found["model"], found["logical_cpus"], found["usable_cores"]) == ("", 1, 1)
    assert found["architecture"] == platform.machine()


def test_cores_of_this_machine_agree_with_system_calls() -> None:
    assert probe_processor()["usable_logical_cpus"] == len(os.sched_getaffinity(0))
