"""Probe software: Python, libraries, environment variables and the build of PyTorch."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from hybridperf.errors import ExitCode, UserError
from hybridperf.system import files, toolkit
from hybridperf.system.privacy import Guard, allowed_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Software",
    "TorchRelease",
    "probe_software",
    "torch_build",
    "torch_folder",
    "torch_release",
]


class Software(TypedDict):
    """Versions of Python, and of libraries by distribution name."""

    python: str
    python_implementation: str
    python_compiler: str
    libraries: dict[str, str]
    torch: TorchRelease
    environment: dict[str, str]  #: allow-listed variables and values only


_LIBRARIES = re.compile(
    r"hybridperf|torch|torchvision|transformers|datasets|numpy|pandas|scikit-learn|safetensors"
    r"|triton|nvidia-ml-py|nvidia-nccl-cu\d{1,3}|deepspeed|accelerate|flash-attn|apex|mpi4py|jax"
)

_NAME_OR_VERSION = re.compile(r"^(Name|Version):[ \t]*(\S+)", re.MULTILINE)


def probe_software() -> Software:
    """Describe the software environment of this process."""
    return Software(
        python=platform.python_version(),
        python_implementation=platform.python_implementation(),
        python_compiler=platform.python_compiler(),
        libraries=dict(_libraries()),
        torch=torch_release(),
        environment=allowed_environment(os.environ),
    )


@functools.cache
def _libraries() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # distribution.name parses whole descriptions, which takes a tenth of a second.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        fields = dict(reversed(_NAME_OR_VERSION.findall(text)))  # the first of each
        name = re.sub(r"[-_.]+", "-", fields.get("Name", "")).lower()
        # Python imports the first distribution on the search path.
        if _LIBRARIES.fullmatch(name):
            found.setdefault(name, fields.get("Version", ""))
    return dict(sorted(found.items()))


class TorchRelease(TypedDict):
    """The fields of PyTorch's version file; unknown values are None or empty."""

    version: str
    toolkit: str  #: toolkit version that it was built for
    hip: str
    xpu: str
    git_version: str
    debug: bool | None


_QUERY_LIMIT_S = 120  # a first import from a cold network disk
# Without searching for garbage, which takes more than a third of the time of the import.
_QUERY_SCRIPT = """
import gc
gc.disable()
import json, re, torch
def query(function):
    try:
        return function()
    except Exception:
        return None
shown = torch.__config__.show() + torch.__config__.parallel_info()
def find(pattern):
    found = re.search(pattern, shown)
    return found[1].strip() if found else None
print(json.dumps({
    "compiler": find(r"- ((?:GCC|Clang|MSVC) \\S+)"),
    "blas": find(r"BLAS_INFO=(\\w+)"),
    "lapack": find(r"LAPACK_INFO=(\\w+)"),
    "mkl": find(r"Math Kernel Library Version (\\d\\S*)"),
    "onednn": find(r"MKL-DNN v(\\S+)"),
    "openmp": find(r"OpenMP (\\d+)"),
    "parallel_backend": find(r"ATen parallel backend: (\\w+)"),
    "cpu_capability": query(torch.backends.cpu.get_cpu_capability),
    "threads": query(torch.get_num_threads),
    "interop_threads": query(torch.get_num_interop_threads),
    "accelerators": query(torch.accelerator.device_count),
    "accelerator": query(lambda: torch.get_device_module().get_device_name()),
    "cudnn": query(torch.backends.cudnn.version),
    "gloo_available": query(torch.distributed.is_gloo_available),
    "nccl_available": query(torch.distributed.is_nccl_available),
    "mpi_available": query(torch.distributed.is_mpi_available),
%s
}))
gc.freeze()
"""


def torch_folder() -> Path | None:
    """Return the folder of the installed PyTorch; None if it is not installed."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def torch_release() -> TorchRelease:
    """Read the version file of the installed PyTorch without importing it."""
    folder = torch_folder()
    constants = _constants(files.text(folder / "version.py")) if folder else {}
    debug = constants.get("debug")
    return TorchRelease(
        version=_word(constants, "__version__"),
        toolkit=_word(constants, toolkit.VERSION_FIELD),
        hip=_word(constants, "hip"),
        xpu=_word(constants, "xpu"),
        git_version=_word(constants, "git_version"),
        debug=debug if isinstance(debug, bool) else None,
    )


@functools.cache
def torch_build() -> dict[str, object]:
    """Query the build configuration of PyTorch in a subprocess; takes seconds, then cached.

    Returns an empty dictionary if PyTorch is not installed.

    Raises:
        UserError: exit status 4 if PyTorch does not answer: without its answers the description
            would match another system.
    """
    if torch_folder() is None:
        return {}
    more = "\n".join(
        f'    "{name}": query({call}),' for name, call in toolkit.TORCH_QUERIES.items()
    )
    command = [sys.executable, "-P", "-W", "ignore", "-c", _QUERY_SCRIPT.replace("%s", more)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_QUERY_LIMIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        values = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        found = _without_command(error)
        remedy = "give the same command again; if that fails too, install PyTorch again"
        raise UserError.of(
            "system.torch",
            "an answer of PyTorch about its build",
            found,
            remedy,
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    guard = Guard.of_this_machine()
    return {key: guard.scrub(value) for key, value in values.items()}


def _without_command(error: Exception) -> str:
    """Summarize the ``error`` of a query, without the command in its message."""
    match error:
        case subprocess.TimeoutExpired():
            return f"none within {error.timeout:g} s"
        case subprocess.CalledProcessError(returncode=code) if code < 0:
            return f"a process killed by signal {-code}"
        case subprocess.CalledProcessError(stderr=printed):
            return (printed or "").strip().rpartition("\n")[2][:200] or "none"
        case OSError():
            return f"no process: {error.strerror}"
    return "something else"


def _constants(source: str) -> dict[str, object]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, object] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            target: ast.expr = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            continue
        if isinstance(target, ast.Name) and isinstance(statement.value, ast.Constant):
            found[target.id] = statement.value.value
    return found


def _word(constants: Mapping[str, object], name: str) -> str:
    value = constants.get(name)
    return value if isinstance(value, str) else ""
