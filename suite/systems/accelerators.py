"""The accelerators: which there are, and which of them are used."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, TypedDict

from suite.systems import files, nvml
from suite.systems.gpu import Gpu, GpuPair, describe_gpu, describe_pair
from suite.systems.nvml import Nvml
from suite.systems.other_accelerators import other_accelerators
from suite.systems.toolkit import driver_toolkit, visible_gpus

__all__ = ["Accelerators", "gpu_models", "probe_accelerators"]


class Accelerators(TypedDict):
    """All accelerators of this machine, and how many of them are used."""

    used: int
    gpus: list[Gpu]
    pairs: list[GpuPair]
    driver: str
    driver_toolkit: str  #: the newest version that the driver runs of what GPUs are programmed with
    display_vendors: list[str]  #: of the graphics adapters that the kernel knows


_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana"}


def probe_accelerators(root: Path = Path("/")) -> Accelerators:
    """Describe the accelerators, through the management library where it is there."""
    ids = {
        files.text(card / "device/vendor")
        for card in files.children(root / "sys/class/drm", "card*")
    }
    vendors = sorted(_VENDORS[vendor] for vendor in ids if vendor in _VENDORS)
    with nvml.session(root) as library:
        if library is None:
            names = gpu_models(root) or other_accelerators()
            gpus = [_named_only(name) for name in names]
            return Accelerators(
                used=len(gpus),
                gpus=gpus,
                pairs=[],
                driver="",
                driver_toolkit="",
                display_vendors=vendors,
            )
        handles = library.handles()
        used_gpus = visible_gpus([_identities(library, handle) for handle in handles])
        return Accelerators(
            used=len(used_gpus),
            gpus=[
                describe_gpu(library, handle, used=n in used_gpus)
                for n, handle in enumerate(handles)
            ],
            pairs=[
                describe_pair(library, handles, pair)
                for pair in combinations(range(len(handles)), 2)
            ],
            driver=library.text("SystemGetDriverVersion"),
            driver_toolkit=driver_toolkit(library),
            display_vendors=vendors,
        )


def gpu_models(root: Path = Path("/")) -> list[str]:
    """Return the names of the NVIDIA GPUs that the environment lets through, in its order.

    Asks the driver's files where the management library is not installed.
    """
    with nvml.session(root) as library:
        if library is not None:
            handles = library.handles()
            names = [library.text("DeviceGetName", handle) for handle in handles]
            identities = [_identities(library, handle) for handle in handles]
        else:
            folders = files.children(root / "proc/driver/nvidia/gpus")
            said = [files.fields(files.text(folder / "information")) for folder in folders]
            names = [one.get("Model", "") for one in said]
            identities = [[one.get("GPU UUID", "")] for one in said]
    return [names[gpu] for gpu in visible_gpus(identities)]


def _named_only(name: str) -> Gpu:
    gpu = describe_gpu(Nvml(None), None, used=True)
    gpu["name"] = name
    return gpu


def _identities(library: Nvml, handle: Any) -> list[str]:
    found = [library.text("DeviceGetUUID", handle)]
    for index in range(library.whole("DeviceGetMaxMigDeviceCount", handle) or 0):
        instance = library.ask("DeviceGetMigDeviceHandleByIndex", handle, index)
        if instance is not None:
            found.append(library.text("DeviceGetUUID", instance))
    return found
