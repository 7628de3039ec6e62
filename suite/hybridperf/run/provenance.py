"""The provenance of a run: version, commit and hashes of the code that made it.

A rank says which modules it has imported, and the harness reads their files. The manifest lists
the modules that neither `packages_sha256` nor the hashes of harness, trainer and predictor cover.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.machinery
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hybridperf
from hybridperf.untrusted import MODULE_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "code_facts",
    "code_hashes",
    "compiled_folders",
    "file_sha256",
    "has_module",
    "import_facts",
    "package_folder",
    "packages_sha256",
    "top_folder",
]

_COMPILED = "__pycache__"  #: folders that Python writes itself
_SUFFIXES: Final = tuple(importlib.machinery.all_suffixes())
_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_MOST_LISTED: Final = 1000
_INSTALLED: Final = {"site-packages", "dist-packages"}
_LEFT_OUT: Final = {*_INSTALLED, "__pycache__", "test", "tests", "idlelib", "turtledemo"}


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
    """Return the facts that are equal for two runs of the same code."""
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


def has_module(package: str, module: str) -> bool:
    """Return whether ``package`` exists and has ``module``."""
    try:
        return (package_folder(package) / f"{module}.py").exists()
    except ModuleNotFoundError:
        return False


def top_folder(package: str) -> Path:
    """Return the folder of the outermost package around ``package``.

    Raises:
        ModuleNotFoundError: if there is no such package.
    """
    folder = package_folder(package)
    return folder.parents[package.count(".") - 1] if "." in package else folder


def compiled_folders(folder: Path) -> list[Path]:
    """Return the folders of bytecode below ``folder``."""
    return [each for each in _folders(folder) if each.name == _COMPILED and each != folder]


def _folder_sha256(folder: Path) -> str:
    """Return one hash of the names and contents of all files below ``folder``.

    Bytecode is left out: no process of a run reads it.
    """
    compiled = set(compiled_folders(folder))
    digest = hashlib.sha256()
    for path in sorted(each for parent in _folders(folder) for each in parent.iterdir()):
        if path.is_file() and not (path.parent in compiled and path.suffix == ".pyc"):
            digest.update(f"{path.relative_to(folder).as_posix()} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _folders(folder: Path) -> Iterator[Path]:
    """Yield ``folder`` and all folders below it, however deep; the target of links only once."""
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


def import_facts(files: Mapping[str, str], packages: Iterable[str]) -> dict[str, object]:
    """Return the manifest's facts about the modules that ranks imported.

    ``files`` are their paths by name, as ranks state them; ``packages`` are hashed whole. Python's
    own library has one hash; modules that an installer recorded, with the same content, are not
    listed.
    """
    own = [os.path.realpath(top_folder(package)) for package in packages]
    library = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    elsewhere = {}
    for name, path in sorted(files.items()):
        place = Path(os.path.realpath(path))
        of_python = not _INSTALLED.intersection(place.parts) and _inside(place, library)
        if of_python or _inside(place, own) or not place.name.endswith(_SUFFIXES):
            continue
        try:
            status = place.stat()
            digest = _sha256(place, status.st_ctime_ns, status.st_size)
        except (OSError, ValueError):
            digest = "unreadable"
        if _recorded().get(str(place)) != digest and _MODULE.fullmatch(name):
            elsewhere[name] = digest
    return {
        "modules": len(files),
        "python_sha256": _library_sha256(),
        "elsewhere": dict(list(elsewhere.items())[:_MOST_LISTED]),
    }


def _inside(path: Path, folders: Iterable[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


@functools.cache
def _sha256(path: Path, _changed_ns: int, _size: int) -> str:
    """Return the SHA-256 of a file, cached until its change time or size changes."""
    with open_bounded(path, MODULE_CAP_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


@functools.cache
def _recorded() -> dict[str, str]:
    """Return the SHA-256 of every file of code that an installer recorded, by real path."""
    import importlib.metadata  # as in `packages_sha256`

    found = {}
    for package in importlib.metadata.distributions():
        base = os.path.realpath(str(package.locate_file("")))
        for line in (package.read_text("RECORD") or "").splitlines():
            path, _, rest = line.rpartition(",sha256=")
            if path.endswith(_SUFFIXES):
                digest = rest.partition(",")[0]
                content = base64.urlsafe_b64decode(f"{digest}{'=' * (-len(digest) % 4)}")
                found[os.path.normpath(os.path.join(base, path))] = content.hex()  # noqa: PTH118 - of many thousand
    return found


@functools.cache
def _library_sha256() -> str:
    """Return one hash of the code of Python's own library."""
    root, digest = Path(sysconfig.get_path("stdlib")), hashlib.sha256()
    for path in sorted(_code(root)):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _code(root: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(parent, name) for name in files if name.endswith(_SUFFIXES))
