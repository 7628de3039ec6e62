"""The provenance of a run: version, commit and hashes of the code that made it."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hybridperf

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "code_facts",
    "code_hashes",
    "compiled_folders",
    "file_sha256",
    "package_folder",
    "packages_sha256",
    "top_folder",
]

_COMPILED = "__pycache__"  #: folders that Python writes itself


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file at ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def code_facts(trainer: str) -> dict[str, object]:
    """Return version, commit and hashes of the harness and of the package ``trainer``.

    Raises:
        ModuleNotFoundError: if there is no such package.
    """
    folder = Path(hybridperf.__file__).parent
    return {
        "version": hybridperf.__version__,
        "suite_sha256": _folder_sha256(folder),
        "trainer": trainer,
        "trainer_sha256": _folder_sha256(top_folder(trainer)),
        "commit": _commit(folder),
        "packages_sha256": packages_sha256(),
    }


@functools.cache
def packages_sha256() -> str:
    """Return one hash of all installed packages: name, version and list of files of each.

    The list, ``RECORD``, has the SHA-256 of every file that its installer wrote.
    """
    import importlib.metadata  # every rank imports this module, and none needs that one

    lines = set()
    for package in importlib.metadata.distributions():
        record = hashlib.sha256((package.read_text("RECORD") or "").encode()).hexdigest()
        lines.add(f"{package.metadata['Name']} {package.version} {record}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def code_hashes(trainer: str) -> dict[str, object]:
    """Return what must be equal for two runs to have the same code."""
    code = code_facts(trainer)
    return {key: code[key] for key in ("trainer", "trainer_sha256", "suite_sha256")}


def package_folder(package: str) -> Path:
    """Return the folder of ``package`` without importing it.

    Searched are ``sys.path`` and the current folder.

    Raises:
        ModuleNotFoundError: if there is no such package.
    """
    places: list[str] = [*sys.path, str(Path.cwd())]
    origin = None
    for name in package.split("."):
        spec = (
            importlib.machinery.PathFinder.find_spec(name, places) if name.isidentifier() else None
        )
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"no package {package}")
        places, origin = list(spec.submodule_search_locations), spec.origin
    if origin is None:
        raise ModuleNotFoundError(f"no package {package}")
    return Path(origin).parent


def top_folder(package: str) -> Path:
    """Return the folder of the package that holds ``package``, or its own if none does.

    Raises:
        ModuleNotFoundError: if there is no such package.
    """
    folder = package_folder(package)
    return folder.parents[package.count(".") - 1] if "." in package else folder


def compiled_folders(folder: Path) -> list[Path]:
    """Return the folders below ``folder`` that hold what Python has compiled."""
    return [each for each in _folders(folder) if each.name == _COMPILED and each != folder]


def _folder_sha256(folder: Path) -> str:
    """Return one hash of the names and contents of all files below ``folder``.

    Only what Python has compiled is left out, which no process of a run reads.
    """
    compiled = set(compiled_folders(folder))
    digest = hashlib.sha256()
    for path in sorted(each for parent in _folders(folder) for each in parent.iterdir()):
        if path.is_file() and not (path.parent in compiled and path.suffix == ".pyc"):
            digest.update(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _folders(folder: Path) -> Iterator[Path]:
    """Yield ``folder`` and all below it, however deep, and once each that links lead to."""
    left, entered = [folder], set()
    while left:
        each = left.pop()
        if (real := os.path.realpath(each)) not in entered:
            entered.add(real)
            yield each
            left.extend(sorted((path for path in each.iterdir() if path.is_dir()), reverse=True))


def _commit(folder: Path) -> str | None:
    """Return the git commit of the code, with ``-dirty`` if it was changed; None outside git."""
    git = ["git", "-C", str(folder)]
    try:
        _output(*git, "ls-files", "--error-unmatch", "__init__.py")
        return _output(*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _output(*command: str) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout.strip()
