"""Call NVML, the NVIDIA Management Library, treating failed calls as unknown values."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Nvml", "has_driver", "is_installed", "session"]

# The last one is the driver in the Windows Subsystem for Linux.
_DRIVER_MARKS = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")


class Nvml:
    """A wrapper of NVML; functions are named without the prefix ``nvml``."""

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


def is_installed() -> bool:
    """Return whether the Python bindings of NVML can be imported."""
    return _module() is not None


@contextlib.contextmanager
def session(root: Path = Path("/")) -> Iterator[Nvml | None]:
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
