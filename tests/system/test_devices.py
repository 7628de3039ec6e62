from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.system.accelerators import Devices, usable_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    SetTorch = Callable[..., None]


def test_gpus_are_preferred_to_cores(gpus: Path) -> None:
    assert usable_devices(gpus) == Devices("gpu", 2, "NVIDIA H200")


def test_without_visible_gpus_the_cores_are_used(
    gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = usable_devices(gpus)
    assert (found.kind, found.count) == ("cpu", 4)


def test_without_gpus_supported_by_torch_the_cores_are_used(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, set_torch: SetTorch
) -> None:
    set_torch(toolkit="")
    assert usable_devices(gpus).kind == "cpu"


def test_cores_of_a_machine_without_gpus(arm: Path) -> None:
    assert usable_devices(arm) == Devices("cpu", 4, "Arm Neoverse-N1")
