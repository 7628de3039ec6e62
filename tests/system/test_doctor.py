from __future__ import annotations

import importlib.metadata
import re
import socket
import sys
import tempfile
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.system import doctor
from hybridperf.system.doctor import diagnose, examine_graphics, examine_packages, examine_resources
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import task_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.system.doctor import Diagnosis

    Put = Callable[[dict[str, str]], None]
    SetTorch = Callable[..., None]


def _by_name(found: Any) -> dict[str, Diagnosis]:
    return {one.name: one for one in found}


def test_this_machine_is_examined_for_everything(tmp_path: Path) -> None:
    found = _by_name(diagnose(tmp_path / "new" / "folder"))
    assert {
        "Python",
        "torch",
        "numpy",
        "data of resnet/laptop",
        "clock",
        "memory",
    } <= set(found)
    assert found["torch"].status == "ok"
    assert found["output folder"].status == "ok"
    assert not (tmp_path / "new").exists()


def test_whatever_is_lacking_has_a_remedy_of_one_sentence(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", absent)
    found = [*examine_packages(), *examine_resources(tree / "x", tree)]
    lacking = [one for one in found if one.status != "ok"]
    assert {"torch", "numpy", "pytest", "shared memory"} <= {one.name for one in lacking}
    for one in lacking:
        assert re.fullmatch(r"[A-Z].*[^.]\.", one.remedy), one
        assert not re.search(r"https?:|\.org|\.com|\.io", one.remedy), one
    assert all(one.remedy == "" for one in found if one.status == "ok")


def test_versions_are_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda _: ["numpy>=1.26", "torch>=2.11; extra == 'train'", "pip; extra == 'x'"],
    )
    for version, status in (("2.9.1", "missing"), ("2.11.0+cpu", "ok"), ("3.0a1", "ok")):
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        found = _by_name(examine_packages())
        assert (found["torch"].status, "pip" in found) == (status, False)
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.9")
    assert {
        name: one.remedy for name, one in _by_name(examine_packages()).items() if one.remedy
    } == {
        "torch": "Install it with: pip install 'hybridperf[train]'.",
    }
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.1")
    numpy = _by_name(examine_packages())["numpy"]
    assert numpy.remedy == "Install it with: pip install 'numpy>=1.26'."


def test_a_source_tree_states_its_own_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert {"torch", "safetensors", "jinja2"} <= set(_by_name(examine_packages()))


def test_an_old_python_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert next(examine_packages()).status == "missing"


def test_missing_data_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise UserError("the data is gone", ExitCode.ENVIRONMENT)

    monkeypatch.setattr(doctor, "check_data", refuse)
    found = _by_name(diagnose())["data of resnet/laptop"]
    assert (found.status, found.detail) == ("missing", "the data is gone")
    assert found.remedy


def test_data_of_larger_tasks_is_information(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    found = _by_name(diagnose(tmp_path))["data of resnet50/cluster"]
    assert found.status == "optional"
    assert found.detail.startswith("not here: needs a folder with ImageNet-1k of the ILSVRC 2012")
    assert found.remedy == f"Name it with --data-dir or in the variable {DATA_VARIABLE}."
    laptop = [name for name in task_names() if name.endswith("/laptop")]
    assert {_by_name(diagnose(tmp_path))[f"data of {name}"].status for name in laptop} == {"ok"}


def test_little_room_and_memory_are_said(
    xeon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Put
) -> None:
    put({"proc/meminfo": "MemAvailable: 1048576 kB\n"})
    monkeypatch.setattr(doctor, "_LEAST_DISK_BYTES", 1 << 70)
    found = _by_name(examine_resources(tmp_path, xeon))
    assert (found["memory"].status, found["memory"].detail) == ("optional", "1 GiB available")
    assert found["free disk"].status == "missing"


def test_a_folder_that_cannot_be_written_to_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = _by_name(examine_resources(tmp_path))["output folder"]
    assert (found.status, found.detail) == ("missing", "cannot write: Permission denied")


def test_a_loopback_that_is_down_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> NoReturn:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert _by_name(examine_resources(tmp_path))["loopback network"].status == "missing"


@pytest.mark.parametrize(("source", "status"), [("tsc", "ok"), ("hpet", "optional")])
def test_a_slow_clock_is_said(
    tree: Path, tmp_path: Path, source: str, status: str, put: Put
) -> None:
    name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    put({name: source})
    assert _by_name(examine_resources(tmp_path, tree))["clock"].status == status


def test_a_machine_without_gpus_lacks_nothing(tree: Path) -> None:
    assert [one.status for one in examine_graphics(tree)] == ["ok"]


@pytest.mark.parametrize(
    ("toolkit", "status"), [("13.2", "ok"), ("12.8", "ok"), ("14.0", "missing"), ("", "missing")]
)
def test_torch_must_fit_the_driver(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, toolkit: str, status: str, set_torch: SetTorch
) -> None:
    set_torch(toolkit=toolkit)
    found = _by_name(examine_graphics(gpus))
    assert (found["nvidia-ml-py"].status, found["GPUs"].status) == ("ok", status)


def test_the_management_library_is_optional(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, made_up_nvml: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _by_name(examine_graphics(gpus))["nvidia-ml-py"].status == "optional"
    monkeypatch.setitem(sys.modules, "pynvml", made_up_nvml(broken=1))
    assert _by_name(examine_graphics(gpus))["GPUs"].status == "ok"
