from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.system.files import group_limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]


def test_without_groups_there_is_no_limit(tree: Path) -> None:
    assert group_limits(tree) == (None, None)


def test_the_tightest_limit_of_all_ancestors_applies(tree: Path, put: Put) -> None:
    put(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "150000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/b/memory.max": "4096",
            "sys/fs/cgroup/memory.max": "max",
        }
    )
    assert group_limits(tree) == (1.5, 4096)


def test_cgroups_v1_in_a_container_with_the_path_of_the_host(tree: Path, put: Put) -> None:
    put(
        {
            "proc/self/cgroup": "4:memory:/docker/f00\n1:cpu,cpuacct:/docker/f00\nodd\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
    )
    assert group_limits(tree) == (2.0, None)


def test_malformed_limits_are_ignored(tree: Path, put: Put) -> None:
    put(
        {
            "proc/self/cgroup": "0::/../x\n0::/",
            "sys/fs/cgroup/cpu.max": "5 0",
            "sys/fs/cgroup/memory.max": "?",
        }
    )
    assert group_limits(tree) == (None, None)
