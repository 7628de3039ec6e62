"""Hostile names, kinds of files, numbers of runs, and archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from typing import TYPE_CHECKING, Literal

from tests.hostile.inputs import RUN, Hostile, content, elsewhere, hostile, without
from tests.packages import log_path, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package

_NAMES = {
    "dots": "...",
    "a dot first": ".acme",
    "a space": "ac me",
    "only a space": " ",
    "bidirectional overrides": "acme\u202egnp",
    "zero-width characters": "ac\u200bme",
    "255 bytes": "a" * 255,
    "65 characters": "a" * 65,
    "a dash first": "-rf",
    "an option": "--format=json",
    "a terminal escape": "\x1b[31macme",
    "a line feed": "acme\nvalid",
    "a formula": "=1+1",
    "a tag": "<img src=x onerror=alert(1)>",
    "a tilde": "~root",
    "a backslash": "ac\\me",
    "Cyrillic": "\u0430cme",
}
_BYTES = os.fsdecode(b"acme\xff\xfe")


def _org(name: str, title: str, *, agrees: bool) -> Hostile:
    def make(package: Package) -> Path:
        if agrees:
            shutil.rmtree(package.root / package.org)
            write_result(package.root, org=name)
        else:
            (package.root / package.org).rename(package.root / name)
        return package.root

    rules = ("result.name",) if agrees else ("result.name", "result.place")
    how = "and its logs " if agrees else ""
    return elsewhere(f"an organisation {how}named with {title}", make, *rules)


def _system(name: str, title: str) -> Hostile:
    def make(package: Package) -> None:
        package.folder.parent.rename(package.folder.parent.with_name(name))

    return hostile(f"a system named with {title}", make, "result.name", "result.place")


def _benchmark(name: str, title: str) -> Hostile:
    def make(package: Package) -> None:
        package.folder.rename(package.folder.with_name(name))

    return hostile(f"a benchmark named with {title}", make, "result.name", "result.place")


def _instead(
    title: str, put: Callable[[Path], object], *rules: str, large: bool = False
) -> list[Hostile]:
    """Put something else where a log, a manifest and the system file stand."""

    def at(place: Callable[[Package], Path]) -> Callable[[Package], None]:
        def make(package: Package) -> None:
            path = place(package)
            path.rename(path.with_name("saved"))
            put(path)

        return make

    def of_manifest(package: Package) -> Path:
        return package.folder / f"result_{RUN}.json"

    def of_log(package: Package) -> Path:
        return log_path(package, RUN)

    def of_system(package: Package) -> Path:
        return package.system_file

    return [
        hostile(f"{title} as a log", at(of_log), *(rules or ("log.file",)), large=large),
        hostile(f"{title} as a manifest", at(of_manifest), "result.manifest"),
        hostile(f"{title} as the system file", at(of_system), "system.file"),
    ]


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 * 2**20)


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def _hard_link(package: Package) -> None:
    log_path(package, RUN).unlink()
    log_path(package, RUN).hardlink_to(log_path(package, 3))


def _zip(text: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../result_0.txt", text)
    return buffer.getvalue()


def _tar(text: bytes, mode: Literal["w:", "w:gz"] = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        member = tarfile.TarInfo("/result_0.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


def _outer(make: Callable[[Path], Path]) -> Callable[[Package], Path]:
    return lambda package: make(package.root)


def _linked_file(root: Path) -> Path:
    (root / "log.txt").symlink_to(next(root.rglob("result_2.txt")))
    return root / "log.txt"


def _fifo(root: Path) -> Path:
    os.mkfifo(root / "log.txt")
    return root / "log.txt"


def _zero(root: Path) -> Path:
    (root / "log.txt").symlink_to("/dev/zero")
    return root / "log.txt"


def _loop_alone(root: Path) -> Path:
    (root / "log.txt").symlink_to("log.txt")
    return root / "log.txt"


def _empty(root: Path) -> Path:
    (root / "a" / "results" / "b" / "c").mkdir(parents=True)
    return root / "a"


def _cycle(package: Package) -> None:
    """Let a folder of the submission lead back to its root."""
    (package.folder / "again").symlink_to(package.root)
    log_path(package, RUN).unlink()


def _outside(package: Package) -> Path:
    """Let a submission's folder of results lie outside of it."""
    outside = package.root.with_name("outside")
    package.folder.rename(outside)
    package.folder.symlink_to(outside)
    return package.root


NAMES = [
    *(_org(name, title, agrees=False) for title, name in _NAMES.items()),
    *(
        _org(name, title, agrees=True)
        for title, name in _NAMES.items()
        if title not in {"Cyrillic", "255 bytes"}
    ),
    *(_system(name, title) for title, name in _NAMES.items() if title != "255 bytes"),
    *(_benchmark(name, title) for title, name in _NAMES.items()),
    _org(_BYTES, "bytes that are no UTF-8", agrees=False),
    _system(_BYTES, "bytes that are no UTF-8"),
    _benchmark(_BYTES, "bytes that are no UTF-8"),
]
KINDS = [
    *_instead("a link to a file", lambda path: path.symlink_to(path.with_name("saved"))),
    *_instead("a link to a folder", lambda path: path.symlink_to(path.parent)),
    *_instead("a link to itself", lambda path: path.symlink_to(path)),
    *_instead("two links in a loop", _loop),
    *_instead("a link to nothing", lambda path: path.symlink_to("absent")),
    *_instead("a link to /etc/passwd", lambda path: path.symlink_to("/etc/passwd")),
    *_instead("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero")),
    *_instead("a link to /proc/self/mem", lambda path: path.symlink_to("/proc/self/mem")),
    *_instead("a pipe", os.mkfifo),
    *_instead("a socket", lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)),
    *_instead("a folder", lambda path: path.mkdir()),
    *_instead("65 MiB of nothing", _sparse),
    hostile(
        "a hard link to another run",
        _hard_link,
        "run.manifest",
        "result.seeds",
    ),
    elsewhere("a link to a log", _outer(_linked_file), "log.file"),
    elsewhere("a pipe alone", _outer(_fifo), "check.path"),
    elsewhere("a link to /dev/zero alone", _outer(_zero), "check.path"),
    elsewhere("a link to itself alone", _outer(_loop_alone), "check.path"),
    elsewhere("a name of 300 bytes", _outer(lambda root: root / ("a" * 300)), "check.path"),
    elsewhere("a path of 5000 bytes", _outer(lambda root: root / ("a/" * 2500)), "check.path"),
    elsewhere(
        "a file as a folder",
        _outer(lambda root: next(root.rglob("result_2.txt")) / "a"),
        "check.path",
    ),
    elsewhere("NUL in a name", _outer(lambda root: root / "a\0b"), "check.path"),
    elsewhere("a surrogate in a name", _outer(lambda root: root / "a\ud800"), "check.path"),
    elsewhere("a terminal escape in a name", _outer(lambda root: root / "\x1b[2J"), "check.path"),
    elsewhere("a result without runs", _outer(_empty), "check.path"),
    elsewhere("results outside of the submission", _outside, "check.path"),
    hostile("a folder that leads to itself", _cycle, "result.attempts"),
]
if os.geteuid() != 0:
    KINDS += _instead("what may not be read", lambda path: path.touch(0))


def _rename(name: str) -> Callable[[Package], object]:
    return lambda package: log_path(package, RUN).rename(package.folder / name)


def _also(name: str, *, log: bool = True) -> Callable[[Package], object]:
    def make(package: Package) -> None:
        shutil.copy(log_path(package, RUN), package.folder / name)
        if log:
            log_path(package, RUN).unlink()

    return make


NUMBERS = [
    *(
        hostile(f"{name!r} for a log", _rename(name), "result.attempts", "result.run_count")
        for name in (
            "result_02.txt",
            "result_+2.txt",
            "result_2.txt ",
            "result_2.TXT",
            "RESULT_2.txt",
            "result_-2.txt",
            "result_2.0.txt",
            "result_\u0662.txt",
            "result_2\n.txt",
            "result_1000000.txt",
            "result_2.txt~",
            "result_.txt",
            "result_*.txt",
            "result_2.txt.gz",
            "-result_2.txt",
            "\x1b[2Jresult_2.txt",
        )
    ),
    hostile("a run number 999999", _rename("result_999999.txt"), "result.attempts"),
    hostile("a gap before a further run", _also("result_7.txt", log=False), "result.attempts"),
    hostile("a gap at the first run", without("result_0.txt"), "result.attempts"),
    hostile(
        "every other run",
        without("result_0.txt", "result_1.txt", "result_3.txt"),
        "result.attempts",
        "result.run_count",
    ),
]
ARCHIVES = [
    content(f"{name} as a log", pack, "log.file")
    for name, pack in (
        ("a zip file", _zip),
        ("a gzip file", gzip.compress),
        ("a tar file", _tar),
        ("a bare tar file", lambda text: _tar(text, "w:")),
        ("an xz file", lzma.compress),
        ("a bzip2 file", bz2.compress),
        ("a zip bomb", lambda _text: _zip(b"0" * 10_000_000)),
    )
]
FILES = {"name": NAMES, "file": KINDS, "number": NUMBERS, "archive": ARCHIVES}
