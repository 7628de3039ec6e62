"""The doctor on GPUs: do the driver, its Python package and PyTorch fit together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from suite.systems import nvml
from suite.systems.accelerators import probe_accelerators
from suite.systems.diagnosis import Diagnosis, judge
from suite.systems.toolkit import judge_toolkit
from suite.systems.torch_build import torch_release

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["examine_graphics"]


def examine_graphics(root: Path = Path("/")) -> Iterator[Diagnosis]:
    """Examine the GPUs; without any, runs use the processor cores and nothing is missing."""
    found = probe_accelerators(root)
    count = found["used"]
    if nvml.has_driver(root):
        yield judge(
            "nvidia-ml-py",
            nvml.is_installed(),
            "installed" if nvml.is_installed() else "not installed",
            "Install it with 'pip install nvidia-ml-py' to describe the GPUs fully.",
            needed=False,
        )
    if not count:
        yield Diagnosis("GPUs", "ok", "none visible; runs use the processor cores")
        return
    fits, detail, remedy = judge_toolkit(count, torch_release()["toolkit"], found["driver_toolkit"])
    yield judge("GPUs", fits, detail, remedy)
