"""The devices that a plan may spread training over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from suite.systems.accelerators import gpu_models
from suite.systems.cpu import probe_processor
from suite.systems.other_accelerators import other_accelerators
from suite.systems.torch_build import torch_release

__all__ = ["Devices", "usable_devices"]


@dataclass(frozen=True, slots=True)
class Devices:
    """What this process can train on."""

    kind: Literal["cpu", "gpu"]  #: gpu for accelerators of any kind
    count: int  #: accelerators, or processor cores where there are none; at least 1
    name: str  #: the model, or ``""`` where it is unknown


def usable_devices(root: Path = Path("/")) -> Devices:
    """Return the visible accelerators that the installed PyTorch uses, or the cores."""
    models = gpu_models(root) if torch_release()["toolkit"] else other_accelerators()
    if models:
        return Devices("gpu", len(models), models[0])
    processor = probe_processor(root)
    return Devices("cpu", processor["usable_cores"], processor["model"])
