"""How the installed PyTorch was built, found out without importing it in this process."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from suite.systems import files, toolkit
from suite.systems.privacy import Guard

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TorchRelease", "torch_build", "torch_folder", "torch_release"]


class TorchRelease(TypedDict):
    """What the installed files say; what is unknown is None or empty."""

    version: str
    toolkit: str  #: version of what accelerators are programmed with, that it was built for
    hip: str
    xpu: str
    git_version: str
    debug: bool | None


_SECONDS = 120  # a first import from a cold network disk
_ASK = """
import json, re, torch
def ask(question):
    try:
        return question()
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
    "cpu_capability": ask(torch.backends.cpu.get_cpu_capability),
    "threads": ask(torch.get_num_threads),
    "interop_threads": ask(torch.get_num_interop_threads),
    "accelerators": ask(torch.accelerator.device_count),
    "accelerator": ask(lambda: torch.get_device_module().get_device_name()),
    "cudnn": ask(torch.backends.cudnn.version),
    "gloo_available": ask(torch.distributed.is_gloo_available),
    "nccl_available": ask(torch.distributed.is_nccl_available),
    "mpi_available": ask(torch.distributed.is_mpi_available),
%s
}))
"""


def torch_folder() -> Path | None:
    """Return the folder of the installed PyTorch, or None."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def torch_release() -> TorchRelease:
    """Read the version file of the installed PyTorch."""
    folder = torch_folder()
    stated = _constants(files.text(folder / "version.py")) if folder else {}
    debug = stated.get("debug")
    return TorchRelease(
        version=_word(stated, "__version__"),
        toolkit=_word(stated, toolkit.STATED),
        hip=_word(stated, "hip"),
        xpu=_word(stated, "xpu"),
        git_version=_word(stated, "git_version"),
        debug=debug if isinstance(debug, bool) else None,
    )


@functools.cache
def torch_build() -> dict[str, object]:
    """Ask PyTorch, in a process of its own, how it was built; takes seconds, once.

    Returns an empty dict where PyTorch cannot be imported.
    """
    more = "\n".join(f'    "{name}": ask({call}),' for name, call in toolkit.QUESTIONS.items())
    command = [sys.executable, "-P", "-W", "ignore", "-c", _ASK.replace("%s", more)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    guard = Guard.of_this_machine()
    return {key: guard.scrub(value) for key, value in answer.items()}


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


def _word(stated: Mapping[str, object], name: str) -> str:
    value = stated.get(name)
    return value if isinstance(value, str) else ""
