from __future__ import annotations

import json
import os
import pwd
from typing import TYPE_CHECKING

import pytest

from hybridperf.system.describe import describe
from hybridperf.system.privacy import Guard, allowed_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Put = Callable[[dict[str, str]], None]
    Link = Callable[[str, str], None]


_NOBODY = Guard(frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "/home/alice",
        "in /srv/data",
        "~/x",
        "LD=/opt/lib",
        "../../x/../ /y",
        "C:\\Users",
        "nfs://store/x",
        "a4:bf:01:2e:00:9c",
        "A4-BF-01-2E-00-9C",
        "10.1.2.3",
        "at 192.168.0.17.",
        "host.10.0.0.5",
        "fe80::1ff:fe23:4567:890a",
        "0000:3b:00.0",
        "GPU-5f0e6a6c-1111-2222-3333-1234567890ab",
        "0123456789abcdef0123456789abcdef",
        "0242ac110002",
        "alice@example",
        "my secret",
        "hf_abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "key=abc",
        "pwd=abc",
        "auth=abc",
        "AccountKey=abc==",
        "sv=2024&sig=abc",
        "xoxb-1234",
        "glpat-abcdefghij",
        "npm_abcdefghijkl",
        "dop_v1_abcdef",
        "AIzaSyA-abcdefgh",
        "two\nlines",
        "x" * 1001,
    ],
)
def test_identifying_text_is_removed(text: str) -> None:
    assert _NOBODY.publishable(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Debian GNU/Linux 12",
        "Intel(R) Xeon(R) CPU @ 2.20GHz",
        "AMD Ryzen 7 PRO 7840U w/ Radeon 780M Graphics",
        "6.8.0-45-generic",
        "2.15.0+cu132",
        "570.133.20",
        "d0f2af8b66b20da4baa50644c0cd3f887a2eae2e",
        "1x 200 Gb/s infiniband mlx5_core",
        "expandable_segments:True,max_split_size_mb:128",
        "L1d 2x 32 KiB, L3 1x 32 MiB",
    ],
)
def test_hardware_and_version_names_are_kept(text: str) -> None:
    assert _NOBODY.publishable(text) == text


def test_names_of_this_machine_are_removed_anywhere_in_a_text() -> None:
    guard = Guard(frozenset({"gpu-farm-07", "al"}))
    assert guard.publishable("kernel for GPU-Farm-07x") == ""
    assert guard.publishable("by al") == ""
    assert guard.publishable("Xeon Platinum") == "Xeon Platinum"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no file with password hunter2", "no file with [removed] [removed]"),
        ("sent bearer abc123 twice", "sent [removed] [removed] twice"),
        ("API_TOKEN = abc123 is wrong", "API_TOKEN [removed] [removed] is wrong"),
        ("'token': abc123", "'token': [removed]"),
        ("cannot login as alice here", "cannot login [removed] [removed] here"),
        ("logged in as alice", "logged [removed] [removed] [removed]"),
        ("disk serial number X4 fails", "disk serial [removed] [removed] fails"),
        ("rank 1 failed: the loss is not a number", "rank 1 failed: the loss is not a number"),
    ],
)
def test_what_a_word_announces_is_removed_with_it(text: str, expected: str) -> None:
    assert _NOBODY.redacted(text) == expected


def test_scrub_reaches_every_depth_and_keeps_numbers() -> None:
    value = {"a": [{"b": "/etc"}, 1, None], "c": "fine"}
    assert _NOBODY.scrub(value) == {"a": [{"b": ""}, 1, None], "c": "fine"}


def test_only_allow_listed_environment_variables_and_values_are_kept() -> None:
    environment = {
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "NCCL_ALGO": "Ring,Tree",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
        "MKL_NUM_THREADS": "4; alice",
        "NCCL_P2P_DISABLE": "1\n",
        "NCCL_DEBUG": "/home/alice",
        "NCCL_SOCKET_IFNAME": "eth0",
        "PATH": "/bin",
    }
    assert sorted(allowed_environment(environment)) == [
        "CUDA_VISIBLE_DEVICES",
        "KMP_AFFINITY",
        "NCCL_ALGO",
        "OMP_NUM_THREADS",
        "PYTORCH_CUDA_ALLOC_CONF",
    ]


def test_no_planted_secret_is_published(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, put: Put, link: Link
) -> None:
    host, user = "quokka-rack7", "wilhelmina"
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        "HF_TOKEN": "hf_QwErTyUiOpAsDfGh",
        "WANDB_API_KEY": "77aa88bb99cc00dd11ee22ff33445566778899aa",
        "DB_PASSWORD": "correct-horse-battery",
        "SLURM_JOB_ACCOUNT": "project-unicorn",
        "OMP_NUM_THREADS": "tok_4hG9",
        "MKL_NUM_THREADS": "/data/wilhelmina/mkl",
        "NCCL_DEBUG": "ghp_abcdefghij0123456789",
        "NCCL_ALGO": "10.77.3.9",
        "KMP_AFFINITY": "sk-live-abcdef123456",
        "CUDA_VISIBLE_DEVICES": "GPU-01b2c3d4-aaaa-bbbb-cccc-1234567890ab",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:evil-corp",
        "NCCL_SOCKET_IFNAME": "enp129s0f1",
        "USER": user,
        "HOME": "/data/wilhelmina",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    files = {
        "proc/sys/kernel/hostname": host,
        "proc/sys/kernel/osrelease": f"6.8.0-{host}",
        "proc/self/cgroup": "0::/docker/0123456789ab",
        "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/mapper/vault-root rw",
        "etc/machine-id": "11112222333344445555666677778888",
        "etc/os-release": 'NAME="Image by wilhelmina"\nVERSION_ID="/opt/build17"\n',
        "sys/class/dmi/id/sys_vendor": "Unobtanium Systems",
        "sys/class/dmi/id/product_name": "SN-PRODUCT-9",
        "sys/class/dmi/id/product_serial": "DMISERIAL42",
        "sys/class/dmi/id/product_uuid": "4c4c4544-0051-3010-8052-b4c04f564433",
        "sys/class/net/enp129s0f1/address": "a4:bf:01:2e:00:9c",
        "sys/class/net/enp129s0f1/type": "1",
        "sys/class/net/enp129s0f1/device/x": "",
        "sys/block/sda/size": "2048",
        "sys/block/sda/device/model": "Disk DISKSERIAL99",
        "sys/block/sda/device/serial": "DISKSERIAL99",
        "sys/block/nvme0n1/size": "4096",
        "sys/block/nvme0n1/device/model": "2001:db8:0:1::7",
        "sys/block/nvme0n1/wwid": "eui.00253851b1234567",
    }
    put(files)
    link("sys/class/net/enp129s0f1/device/driver", "../drivers/a4:bf:01:2e:00:9c")
    account = pwd.struct_passwd((user, "x", 4711, 1, "Wilhelmina Vautrin,,,", "/data/w", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    published = json.dumps(describe(gpus)).lower()
    secrets = [
        *environment.values(),
        *(word for value in files.values() for word in value.split() if len(word) > 8),
        *(
            "quokka",
            "vautrin",
            "unobtanium",
            "sn-product-9",
            "vault",
            "diskserial99",
            "dmiserial42",
        ),
        *("1653823004711", "01b2c3d4", "unicorn", "evil", "enp129", "build17", "00253851b1234567"),
    ]
    harmless = {"/", "1", "8:1", "rw", "ext4"}
    assert [s for s in secrets if s not in harmless and s.lower() in published] == []


def test_the_description_of_this_machine_has_no_host_user_or_folder() -> None:
    published = json.dumps(describe()).lower()
    assert os.getcwd().lower() not in published  # noqa: PTH109
    assert f'"{os.uname().nodename.lower()}"' not in published
    assert "/home" not in published
    assert str(os.environ.get("HOME", "/home")).lower() not in published


def test_a_uid_without_an_account_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert Guard.of_this_machine().publishable("fine") == "fine"
