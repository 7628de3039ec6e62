"""Unprivileged Linux namespaces: own mounts, network and shared memory.

Loopback traffic and files in ``/dev/shm`` stay within the namespaces and end with them. Only
``visible`` files and sockets exist, and only ``writable`` folders can be changed in content, mode,
times or attributes.
Source: user_namespaces(7), mount_namespaces(7), mount_setattr(2), network_namespaces(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["enter_namespaces", "why_no_namespaces"]

_NEW: Final = 0x10000000 | 0x00020000 | 0x08000000  #: users, mounts, IPC
_NEW_NETWORK: Final = 0x40000000
_BIND, _RECURSIVE, _SLAVE = 1 << 12, 1 << 14, 1 << 19  # mount(2); a slave gets later mounts
_SET_ATTRIBUTES, _READ_ONLY, _BELOW = 442, 1, 0x8000  # mount_setattr(2), of every architecture
_HERE: Final = -100  #: AT_FDCWD
_NO_EXECUTION: Final = 8
_HARMLESS: Final = 2 | 4 | _NO_EXECUTION  #: no set-user-id programs, no devices
_SET_FLAGS, _UP = 0x8914, 0x41  # netdevice(7): SIOCSIFFLAGS; IFF_UP and IFF_RUNNING
_OF_KERNEL: Final = {"/dev", "/proc", "/sys"}  #: always visible
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where the C library keeps it
_TIMEOUT_S: Final = 60
_PROBE: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from hybridperf.system.namespaces import enter_namespaces; enter_namespaces(())"
)


def enter_namespaces(
    visible: Iterable[str] = ("/",), writable: Iterable[str] = (), *, network: bool = False
) -> None:
    """Move this process and its children to new mount, IPC and user namespaces.

    Only the paths ``visible`` exist, only the folders ``writable`` can be changed. Unless the
    machine's ``network`` is kept, a new one is the loopback interface. Shared memory is as large as
    before. Users and their rights to files stay. The process must have one thread.

    Raises:
        OSError: if the kernel refuses.
    """
    user, group, stats = os.geteuid(), os.getegid(), os.statvfs(_SHARED_MEMORY)
    folder = Path.cwd()
    _check(_LIBC.unshare(_NEW | (0 if network else _NEW_NETWORK)))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(b"none", "/", None, _RECURSIVE | _SLAVE, None)
    changed = [os.path.realpath(path) for path in writable if _is_writable(path)]
    _hide({*visible, *changed})
    for path in changed:  # a mount each, for its own attributes
        _mount(os.fsencode(path), path, None, _BIND | _RECURSIVE, None)
    _set_read_only("/", read_only=True)
    for path in changed:
        _set_read_only(path, read_only=False)
    options = f"mode=1777,size={stats.f_blocks * stats.f_frsize}"
    _mount(b"tmpfs", _SHARED_MEMORY, b"tmpfs", _HARMLESS, options.encode())
    with contextlib.suppress(FileNotFoundError):  # hidden
        os.chdir(folder)  # enter the new mount at this path
    if network:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def _hide(visible: Iterable[str]) -> None:
    """Mount an empty folder over every hidden top folder, then mount its visible contents."""
    links: dict[str, str] = {}
    shown = {_resolve(path, links) for path in visible if os.path.exists(path)}  # noqa: PTH110 - faster: many a run
    if "/" in shown:
        return
    with os.scandir("/") as children:
        tops = [each.path for each in children if each.is_dir(follow_symlinks=False)]
    for top in sorted(set(tops) - shown - _OF_KERNEL):
        inside = [path for path in sorted(shown) if path.startswith(f"{top}/")]
        least = [path for path in inside if not _is_below(path, set(inside) - {path})]
        opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in least}
        _mount(b"tmpfs", top, b"tmpfs", _HARMLESS, b"mode=755")
        for path, descriptor in opened.items():
            source = f"/proc/self/fd/{descriptor}"
            place = Path(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Any file is a mount point for a file, a socket or a device.
            place.mkdir() if os.path.isdir(source) else place.touch()  # noqa: PTH112 - a descriptor
            _mount(source.encode(), path, None, _BIND | _RECURSIVE, None)
            os.close(descriptor)
        for link, target in links.items():
            if link.startswith(f"{top}/") and not _is_below(link, least):
                Path(link).parent.mkdir(parents=True, exist_ok=True)
                Path(link).symlink_to(target)


def _resolve(path: str, links: dict[str, str]) -> str:
    """Resolve ``path``, and add the symbolic links on the way to ``links``."""
    place, left = "/", path.split("/")[::-1]
    while left:
        part = left.pop()
        step = os.path.normpath(os.path.join(place, part))  # noqa: PTH118 - faster: many a run
        if os.path.islink(step):  # noqa: PTH114 - as above
            links[step] = os.readlink(step)  # noqa: PTH115 - as above
            place = "/" if links[step].startswith("/") else place
            left.extend(links[step].split("/")[::-1])
        else:
            place = step
    return place


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


@functools.cache
def why_no_namespaces() -> str:
    """Return why the kernel refuses these namespaces, or ``""`` if it does not."""
    command = [sys.executable, "-I", "-c", _PROBE.format(path=sys.path)]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # out of memory, processes or time
        return f"none could be tried: {type(error).__name__}"
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def _mount(what: bytes, where: str, kind: bytes | None, flags: int, data: bytes | None) -> None:
    _check(_LIBC.mount(what, os.fsencode(where), kind, ctypes.c_ulong(flags), data))


def _is_writable(path: str) -> bool:
    """Return whether ``path`` exists on a writable mount."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except FileNotFoundError:
        return False


def _set_read_only(path: str, *, read_only: bool) -> None:
    """Make all mounts at and below ``path`` read-only, or not."""
    set_and_cleared = (_READ_ONLY, 0) if read_only else (0, _READ_ONLY)
    attributes = (ctypes.c_uint64 * 4)(*set_and_cleared)
    arguments = (_HERE, os.fsencode(path), _BELOW, ctypes.byref(attributes))
    _check(_LIBC.syscall(ctypes.c_long(_SET_ATTRIBUTES), *arguments, ctypes.c_size_t(32)))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
