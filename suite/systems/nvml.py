"""The NVIDIA management library, each of whose calls may fail on its own."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Nvml", "has_driver", "is_installed", "session"]

# The last one stands for the host's driver in a Windows subsystem for Linux.
_DRIVER_MARKS = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")


class Nvml:
    """The library, asked by the names of its functions without their prefix ``nvml``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def ask(self, function: str, *arguments: object) -> Any:
        """Return the answer, or None where this driver, device or library has none."""
        try:
            answer = getattr(self._module, f"nvml{function}")(*arguments)
        except Exception:  # the library raises its own errors, ctypes' and AttributeError
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def whole(self, function: str, *arguments: object) -> int | None:
        """Return the answer where it is a whole number, or None."""
        answer = self.ask(function, *arguments)
        return answer if isinstance(answer, int) else None

    def text(self, function: str, *arguments: object) -> str:
        """Return the answer where it is a text, or ``""``."""
        answer = self.ask(function, *arguments)
        return answer if isinstance(answer, str) else ""

    def handles(self) -> list[Any]:
        """Return the GPUs in the library's order; one that cannot be opened is None."""
        count = self.whole("DeviceGetCount") or 0
        return [self.ask("DeviceGetHandleByIndex", index) for index in range(count)]


def has_driver(root: Path = Path("/")) -> bool:
    """Tell whether an NVIDIA driver is loaded."""
    return any((root / mark).exists() for mark in _DRIVER_MARKS)


def is_installed() -> bool:
    """Tell whether the library's Python package can be imported."""
    return _module() is not None


@contextlib.contextmanager
def session(root: Path = Path("/")) -> Iterator[Nvml | None]:
    """Open the library for a while; None where the package or the driver is missing."""
    # Importing the package takes long: only where there is something to ask.
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
    except Exception:  # a broken installation is as good as none
        return None
