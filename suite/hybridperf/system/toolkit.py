"""All code that is specific to CUDA, and calls of NVML, the NVIDIA Management Library.

Other modules are independent of the accelerator's vendor and use ``torch.accelerator``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "CACHE_VARIABLE",
    "NAME",
    "TORCH_QUERIES",
    "VARIABLES",
    "VARIABLE_PREFIXES",
    "VERSION_FIELD",
    "Nvml",
    "compute_capability",
    "driver_toolkit",
    "has_driver",
    "has_nvml",
    "judge_toolkit",
    "nvml_session",
    "visible_gpus",
]

NAME: Final = "CUDA"
VERSION_FIELD: Final = "cuda"  #: field of the toolkit version in torch's version file
#: field name -> expression for `torch_build`
TORCH_QUERIES: Final[Mapping[str, str]] = {
    "cuda_available": "torch.cuda.is_available",
    "cuda_architectures": "torch.cuda.get_arch_list",
    "nccl": "lambda: '.'.join(map(str, torch.cuda.nccl.version()))",
}
#: environment variables that CUDA and its libraries read
VARIABLES: Final = ("CUDA_HOME", "CUDA_PATH")
VARIABLE_PREFIXES: Final = ("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_")
CACHE_VARIABLE: Final = "CUDA_CACHE_PATH"  #: names the folder of compiled kernels
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def driver_toolkit(library: Nvml) -> str:
    """Return the newest CUDA version supported by the driver; ``""`` if unknown."""
    version = library.whole("SystemGetCudaDriverVersion_v2")
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def compute_capability(library: Nvml, handle: Any) -> str:
    """Return the compute capability of the GPU of an NVML handle; ``""`` if unknown."""
    capability = library.call("DeviceGetCudaComputeCapability", handle)
    return ".".join(map(str, capability)) if capability else ""


def judge_toolkit(count: int, built: str, limit: str) -> tuple[bool, str, str]:
    """Return whether torch can use ``count`` GPUs, a description, and a remedy.

    ``built`` is the CUDA version of torch and ``limit`` the newest one supported by the driver;
    ``""`` if unknown.
    """
    if not built:
        detail = f"{count} visible, but torch is built without CUDA"
        remedy = f"Install a build of torch with CUDA, or set {_VISIBLE}= to run on cores."
        return False, detail, remedy
    # CUDA minor version compatibility: only the major version must be supported.
    fits = not limit or int(built.split(".")[0]) <= int(limit.split(".")[0])
    detail = f"{count} visible; torch is built for CUDA {built}"
    detail += f", the driver runs CUDA {limit}" if limit else ""
    remedy = "Update the NVIDIA driver, or install a build of torch for the driver's CUDA."
    return fits, detail, remedy


def visible_gpus(identities: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the GPUs in ``CUDA_VISIBLE_DEVICES``, in its order.

    ``identities[n]`` contains the UUIDs of GPU n and its MIG instances. Like CUDA, ignore all
    entries from the first invalid one on, and return no GPU if an entry is repeated. If the
    variable is unset, return all GPUs.
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


# The last one is the driver in the Windows Subsystem for Linux.
_DRIVER_MARKS = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")


class Nvml:
    """NVML with failed calls as unknown values; functions are named without the prefix ``nvml``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def call(self, function: str, *arguments: object) -> Any:
        """Return the result of a call; None if driver, device or library do not support it."""
        try:
            result = getattr(self._module, f"nvml{function}")(*arguments)
        except Exception:  # NVMLError, ctypes errors or AttributeError
            return None
        return result.decode(errors="replace") if isinstance(result, bytes) else result

    def whole(self, function: str, *arguments: object) -> int | None:
        """Return the result of a call if it is an integer, else None."""
        result = self.call(function, *arguments)
        return result if isinstance(result, int) else None

    def text(self, function: str, *arguments: object) -> str:
        """Return the result of a call if it is a string, else ``""``."""
        result = self.call(function, *arguments)
        return result if isinstance(result, str) else ""

    def handles(self) -> list[Any]:
        """Return the GPU handles in NVML's order; None for a GPU that cannot be opened."""
        count = self.whole("DeviceGetCount") or 0
        return [self.call("DeviceGetHandleByIndex", index) for index in range(count)]


def has_driver(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA driver is loaded."""
    return any((root / mark).exists() for mark in _DRIVER_MARKS)


def has_nvml() -> bool:
    """Return whether the Python bindings of NVML can be imported."""
    return _module() is not None


@contextlib.contextmanager
def nvml_session(root: Path = Path("/")) -> Iterator[Nvml | None]:
    """Initialise NVML for the ``with`` block; None if package or driver is missing."""
    # Importing the package is slow, so check for a driver first.
    module = _module() if has_driver(root) else None
    try:
        if module is not None:
            module.nvmlInit()
    except Exception:  # no driver, no permission, or a library that does not fit the driver
        module = None
    if module is None:
        yield None
        return
    try:
        yield Nvml(module)
    finally:
        with contextlib.suppress(Exception):
            module.nvmlShutdown()


def _module() -> Any:
    try:
        return importlib.import_module("pynvml")
    except Exception:  # treat a broken installation as missing
        return None
