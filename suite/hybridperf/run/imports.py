"""The code that ranks imported, beside what is hashed already: packages, harness and trainer.

A rank says which modules it has imported, and the harness reads their files. Those that an
installer recorded, and that are as it recorded them, `packages_sha256` covers; those of harness,
trainer and predictor, the hashes of these. Python's own library has one hash; the rest is listed.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import os
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.run.provenance import top_folder
from hybridperf.untrusted import MODULE_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["import_facts"]

_SUFFIXES: Final = tuple(importlib.machinery.all_suffixes())
_MODULE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_MOST_LISTED: Final = 1000
_INSTALLED: Final = {"site-packages", "dist-packages"}
_LEFT_OUT: Final = {*_INSTALLED, "__pycache__", "test", "tests", "idlelib", "turtledemo"}


def import_facts(files: Mapping[str, str], packages: Iterable[str]) -> dict[str, object]:
    """Return what the manifest says of the modules that ranks imported.

    ``files`` are their paths by name, as ranks state them; ``packages`` are hashed whole.
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
    """Return the SHA-256 of a file that has not changed since it was last asked for."""
    with open_bounded(path, MODULE_CAP_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


@functools.cache
def _recorded() -> dict[str, str]:
    """Return the SHA-256 of every file of code that an installer recorded, by real path."""
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
