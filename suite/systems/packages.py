"""The doctor on packages: is what a run needs installed and recent enough."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from suite.systems.diagnosis import Diagnosis, judge
from suite.systems.torch_build import torch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["examine_packages"]

_PYTHON = (3, 11)
_PROJECT = "hybridperf"


class _Requirement(NamedTuple):
    name: str
    least: str  #: a version, or ``""`` where any will do

    def __str__(self) -> str:
        return f"{self.name}>={self.least}" if self.least else self.name


def examine_packages() -> Iterator[Diagnosis]:
    """Examine Python, each package that a run needs, and the launcher of the ranks."""
    wanted = ".".join(map(str, _PYTHON))
    yield judge(
        "Python",
        sys.version_info[:2] >= _PYTHON,
        f"{platform.python_implementation()} {platform.python_version()}",
        f"Install Python {wanted} or newer and run HybridPerf with it.",
    )
    for requirement in _requirements():
        yield _examine(requirement)
    folder = torch_folder()
    # Looked for as a file: importing it would import torch, which takes seconds.
    launcher = folder is not None and (folder / "distributed" / "run.py").is_file()
    yield judge(
        "torchrun",
        launcher,
        "torch.distributed.run is there" if launcher else "no torch.distributed.run",
        "Install a build of torch with distributed training: 'pip install torch'.",
    )


def _examine(requirement: _Requirement) -> Diagnosis:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return judge(
        requirement.name,
        bool(version) and _release(version) >= _release(requirement.least),
        version or "not installed",
        f"Install it with 'pip install \"{requirement}\"'.",
    )


def _requirements() -> list[_Requirement]:
    try:
        stated = importlib.metadata.requires(_PROJECT)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        stated = _from_source_tree(Path(__file__).parents[2] / "pyproject.toml")
    return [_parse(line) for line in stated or [] if "extra ==" not in line]


def _from_source_tree(path: Path) -> list[str]:
    try:
        project = tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return list(project.get("project", {}).get("dependencies", []))


def _parse(line: str) -> _Requirement:
    name = re.match(r"[A-Za-z0-9._-]+", line)
    least = re.search(r">=\s*([0-9.]+)", line)
    return _Requirement(name[0] if name else line, least[1] if least else "")


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
