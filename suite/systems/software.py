"""The software that takes part: Python, libraries, settings in the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from typing import TypedDict

from suite.systems.privacy import allowed_environment
from suite.systems.torch_build import TorchRelease, torch_release

__all__ = ["Software", "probe_software"]


class Software(TypedDict):
    """Versions by the names under which the libraries are distributed."""

    python: str
    python_implementation: str
    python_compiler: str
    libraries: dict[str, str]
    torch: TorchRelease
    environment: dict[str, str]  #: only variables and values of the allow-list


_LIBRARIES = re.compile(
    r"hybridperf|torch|torchvision|transformers|datasets|numpy|pandas|scikit-learn|safetensors"
    r"|triton|nvidia-ml-py|nvidia-nccl-cu\d{1,3}|deepspeed|accelerate|flash-attn|apex|mpi4py|jax"
)


def probe_software() -> Software:
    """Describe the software of this process's environment."""
    return Software(
        python=platform.python_version(),
        python_implementation=platform.python_implementation(),
        python_compiler=platform.python_compiler(),
        libraries=_libraries(),
        torch=torch_release(),
        environment=allowed_environment(os.environ),
    )


def _libraries() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.name or "").lower()
        # The first one on the search path is the one that is imported.
        if _LIBRARIES.fullmatch(name):
            found.setdefault(name, distribution.version or "")
    return dict(sorted(found.items()))
