from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.system.host import (
    available_bytes,
    network_sent_bytes,
    probe_memory,
    probe_network,
    probe_storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[[dict[str, str]], None]
    Link = Callable[[str, str], None]


def test_memory_and_swap(xeon: Path) -> None:
    expected = {"size_bytes": 16 << 30, "usable_bytes": 16 << 30, "swap_bytes": 1 << 20}
    assert probe_memory(xeon) == expected
    assert available_bytes(xeon) == 8 << 30


def test_a_container_limits_the_usable_memory(xeon: Path, put: Put) -> None:
    put({"sys/fs/cgroup/memory.max": str(2 << 30)})
    assert probe_memory(xeon)["usable_bytes"] == 2 << 30
    assert available_bytes(xeon) == 2 << 30


def test_unreadable_memory_is_unknown(tree: Path, put: Put) -> None:
    put({"proc/meminfo": "MemTotal: lots\n"})
    assert probe_memory(tree) == {"size_bytes": None, "usable_bytes": None, "swap_bytes": None}
    assert available_bytes(tree) is None


def test_disks_by_kind_without_loops_and_empty_drives(tree: Path, put: Put) -> None:
    put(
        {
            "sys/block/nvme0n1/size": "2000",
            "sys/block/nvme0n1/device/model": "SAMSUNG MZQL2  ",
            "sys/block/nvme0n1/device/serial": "S64GNE0R123456",
            "sys/block/nvme1n1/size": "3000",
            "sys/block/nvme1n1/device/model": "Amazon Elastic Block Store",
            "sys/block/sda/size": "4000",
            "sys/block/sda/queue/rotational": "1",
            "sys/block/sdb/size": "5000",
            "sys/block/sdb/queue/rotational": "0",
            "sys/block/sdc/size": "6000",
            "sys/block/vda/size": "7000",
            "sys/block/loop0/size": "8000",
            "sys/block/sr0/size": "0",
        }
    )
    disks = probe_storage(tree)["disks"]
    assert [(disk["kind"], disk["size_bytes"] // 512) for disk in disks] == [
        ("NVMe", 2000),
        ("virtual", 3000),
        ("HDD", 4000),
        ("SSD", 5000),
        ("", 6000),
        ("virtual", 7000),
    ]
    assert disks[0]["model"] == "SAMSUNG MZQL2"


def test_the_file_system_is_that_of_the_innermost_last_mount(tree: Path, put: Put) -> None:
    put(
        {
            "proc/self/mountinfo": (
                "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
                "2 1 8:2 / /my\\040data rw shared:1 - xfs /dev/sdb rw\n"
                "3 1 8:3 / /my\\040data rw - btrfs /dev/sdc rw\n"
                "odd line\n"
            )
        }
    )
    assert probe_storage(tree, Path("/my data/run"))["filesystem"] == "btrfs"
    assert probe_storage(tree, Path("/mydata"))["filesystem"] == "ext4"


def test_only_adapters_with_a_device_are_listed(tree: Path, put: Put, link: Link) -> None:
    put(
        {
            "sys/class/net/ib0/type": "32",
            "sys/class/net/ib0/speed": "200000",
            "sys/class/net/ib0/address": "80:00:02:08:fe:80:00:00",
            "sys/class/net/eno1/type": "1",
            "sys/class/net/eno1/speed": "-1",
            "sys/class/net/eno1/device/x": "",
            "sys/class/net/wlp2s0/type": "1",
            "sys/class/net/wlp2s0/wireless/x": "",
            "sys/class/net/wlp2s0/device/x": "",
            "sys/class/net/docker0/type": "1",
        }
    )
    link("sys/class/net/ib0/device/driver", "../../bus/pci/drivers/mlx5_core")
    assert probe_network(tree) == [
        {"kind": "ethernet", "driver": "", "speed_bits_per_second": None},
        {"kind": "infiniband", "driver": "mlx5_core", "speed_bits_per_second": 200_000_000_000},
        {"kind": "wireless", "driver": "", "speed_bits_per_second": None},
    ]


def test_bytes_sent_are_of_adapters_and_of_ports_of_infiniband(tree: Path, put: Put) -> None:
    assert network_sent_bytes(tree) is None
    put({"sys/class/net/lo/statistics/tx_bytes": "9", "sys/class/net/lo/type": "772"})
    assert network_sent_bytes(tree) is None
    put({"sys/class/net/eth0/statistics/tx_bytes": "1000", "sys/class/net/eth0/type": "1"})
    assert network_sent_bytes(tree) == 1000  # a container's interface has no device
    put(
        {
            "sys/class/net/eno1/statistics/tx_bytes": "300",
            "sys/class/net/eno1/device/x": "",
            "sys/class/net/ib0/statistics/tx_bytes": "7",  # IP over the port below
            "sys/class/net/ib0/type": "32",
            "sys/class/net/ib0/device/x": "",
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
            "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "500",
        }
    )
    assert network_sent_bytes(tree) == 300 + 4 * 500
    put({"sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet"})
    assert network_sent_bytes(tree) is None
