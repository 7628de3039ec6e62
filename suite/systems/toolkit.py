"""What is of CUDA, the toolkit that NVIDIA's GPUs are programmed with; no other file names it.

Elsewhere it is one kind of accelerator among several, which torch reaches through
``torch.accelerator``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suite.systems.nvml import Nvml

__all__ = [
    "NAME",
    "QUESTIONS",
    "STATED",
    "compute_capability",
    "driver_toolkit",
    "judge_toolkit",
    "visible_gpus",
]

NAME: Final = "CUDA"
STATED: Final = "cuda"  #: what the version file of torch calls the toolkit's version
#: what torch can say of it, by the name of the answer
QUESTIONS: Final[Mapping[str, str]] = {
    "cuda_available": "torch.cuda.is_available",
    "cuda_architectures": "torch.cuda.get_arch_list",
    "nccl": "lambda: '.'.join(map(str, torch.cuda.nccl.version()))",
}
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def driver_toolkit(library: Nvml) -> str:
    """Return the newest version of the toolkit that the driver runs, or ``""``."""
    version = library.whole("SystemGetCudaDriverVersion_v2")
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def compute_capability(library: Nvml, handle: Any) -> str:
    """Return the compute capability of the GPU behind the library's handle, or ``""``."""
    capability = library.ask("DeviceGetCudaComputeCapability", handle)
    return ".".join(map(str, capability)) if capability else ""


def judge_toolkit(count: int, built: str, limit: str) -> tuple[bool, str, str]:
    """Return whether torch, ``built`` for a version, uses ``count`` GPUs, what is so, and a remedy.

    ``limit`` is the newest version that the driver runs. Either is ``""`` where it is unknown.
    """
    if not built:
        detail = f"{count} visible, but torch is built without CUDA"
        remedy = f"Install a build of torch with CUDA, or set {_VISIBLE}= to run on cores."
        return False, detail, remedy
    # Within one major version, older drivers run newer programs.
    fits = not limit or int(built.split(".")[0]) <= int(limit.split(".")[0])
    detail = f"{count} visible; torch is built for CUDA {built}"
    detail += f", the driver runs CUDA {limit}" if limit else ""
    remedy = "Update the NVIDIA driver, or install a build of torch for the driver's CUDA."
    return fits, detail, remedy


def visible_gpus(identities: Sequence[Sequence[str]]) -> list[int]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names, in its order, counted from 0.

    ``identities[n]`` holds the identifiers of GPU n and of its MIG instances. A list ends at its
    first entry that names no GPU, and a repeated entry voids it. Unset, it hides none.
    """
    setting = os.environ.get(_VISIBLE)
    if setting is None:
        return list(range(len(identities)))
    found: list[int] = []
    entries: list[str] = []
    for entry in (part.strip() for part in setting.split(",")):
        gpu = _gpu(entry, identities)
        if gpu is None:
            break
        if entry in entries:
            return []
        found.append(gpu)
        entries.append(entry)
    return found


def _gpu(entry: str, identities: Sequence[Sequence[str]]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if len(entry) < 5 and int(entry) < len(identities) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    owners = [
        gpu for gpu, names in enumerate(identities) if any(name.startswith(entry) for name in names)
    ]
    return owners[0] if len(owners) == 1 else None
