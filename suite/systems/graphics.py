"""The doctor on GPUs: do the driver, its Python package and PyTorch fit together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from suite.systems import nvml
from suite.systems.accelerators import probe_accelerators
from suite.systems.diagnosis import Diagnosis, judge
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
    cuda, limit = torch_release()["cuda"], found["cuda_driver"]
    if not cuda:
        fits, detail = False, f"{count} visible, but torch is built without CUDA"
        remedy = "Install a build of torch with CUDA, or set CUDA_VISIBLE_DEVICES= to run on cores."
    else:
        # Within one major version, older drivers run newer programs.
        fits = not limit or int(cuda.split(".")[0]) <= int(limit.split(".")[0])
        detail = f"{count} visible; torch is built for CUDA {cuda}"
        detail += f", the driver runs CUDA {limit}" if limit else ""
        remedy = "Update the NVIDIA driver, or install a build of torch for the driver's CUDA."
    yield judge("GPUs", fits, detail, remedy)
