from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.system.host import probe_surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]


def test_bare_metal(xeon: Path) -> None:
    found = probe_surroundings(xeon)
    assert (found["operating_system"], found["kernel"]) == ("Ubuntu 24.04", "6.8.0-45-generic")
    assert (found["container"], found["virtual_machine"], found["hypervisor"]) == ("", False, "")


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({"proc/self/cgroup": "0::/kubepods/pod1/docker"}, "kubernetes"),
        ({"var/run/secrets/kubernetes.io/x": "", ".dockerenv": ""}, "kubernetes"),
        ({"proc/1/cgroup": "1:cpu:/docker/f00"}, "docker"),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"proc/self/cgroup": "0::/lxc.payload"}, "lxc"),
        ({"proc/self/mountinfo": "1 0 0:1 / / rw - overlay o l=/var/lib/containerd"}, "containerd"),
        ({"proc/self/mountinfo": "1 0 0:1 / /mnt/docker rw - ext4 /dev/a rw"}, ""),
    ],
)
def test_containers_are_detected(
    tree: Path, files: dict[str, str], container: str, put: Put
) -> None:
    put(files)
    assert probe_surroundings(tree)["container"] == container


@pytest.mark.parametrize(
    ("vendor", "hypervisor"),
    [("Amazon EC2", "Amazon EC2"), ("QEMU", "KVM"), ("VMware, Inc.", "VMware"), ("ACME 4711", "")],
)
def test_only_known_hypervisors_are_named(
    tree: Path, vendor: str, hypervisor: str, put: Put
) -> None:
    put({"proc/cpuinfo": "flags : fpu hypervisor", "sys/class/dmi/id/sys_vendor": vendor})
    found = probe_surroundings(tree)
    assert (found["virtual_machine"], found["hypervisor"]) == (True, hypervisor)


def test_without_cpu_flags_virtualisation_is_unknown(arm: Path, put: Put) -> None:
    put({"sys/class/dmi/id/sys_vendor": "Microsoft Corporation"})
    found = probe_surroundings(arm)
    assert (found["virtual_machine"], found["hypervisor"]) == (None, "")
