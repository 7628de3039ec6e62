from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from hybridperf.system import accelerators
from hybridperf.system.accelerators import Devices, probe_accelerators, usable_devices
from hybridperf.system.software import TorchRelease

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = TorchRelease(version="2.15.0", toolkit="", hip="", xpu="", git_version="", debug=False)
FOUR = {"accelerators": 4, "accelerator": "Data Center GPU Max 1550"}


def _believe(
    monkeypatch: pytest.MonkeyPatch, release: TorchRelease, build: dict[str, object]
) -> None:
    monkeypatch.setattr(accelerators, "torch_release", lambda: release)
    monkeypatch.setattr(accelerators, "torch_build", lambda: build)


@pytest.mark.parametrize("built", [{"xpu": "20250302"}, {"hip": "7.1"}])
def test_accelerators_of_the_torch_build_are_counted_and_named(
    built: dict[str, str], arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _believe(monkeypatch, PLAIN | built, FOUR)  # type: ignore[arg-type]  # a part of a release

    assert usable_devices(arm) == Devices("gpu", 4, "Data Center GPU Max 1550")
    found = probe_accelerators(arm)
    assert found["used"] == 4
    assert {(gpu["name"], gpu["used"]) for gpu in found["gpus"]} == {
        ("Data Center GPU Max 1550", True)
    }


def test_accelerators_of_an_out_of_tree_backend_are_counted(
    arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [group])
    _believe(monkeypatch, PLAIN, {"accelerators": 8, "accelerator": None})

    assert usable_devices(arm) == Devices("gpu", 8, "accelerator")


@pytest.mark.parametrize("build", [{}, {"accelerators": 0}, {"accelerators": None}])
def test_without_accelerators_the_cores_are_used(
    build: dict[str, object], arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _believe(monkeypatch, PLAIN | {"hip": "7.1"}, build)

    assert usable_devices(arm).kind == "cpu"


def test_torch_is_not_imported_if_built_for_no_accelerator(
    arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _believe(monkeypatch, PLAIN, FOUR)

    assert usable_devices(arm).kind == "cpu"
    assert probe_accelerators(arm)["used"] == 0
