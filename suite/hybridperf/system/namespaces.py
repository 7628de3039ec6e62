"""Namespaces of the Linux kernel, without privileges: network and shared memory of one's own.

What a process sends over the loopback interface, or leaves in ``/dev/shm``, reaches only processes
of the same namespaces, and ends with them. Source: user_namespaces(7), network_namespaces(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["enter_namespaces", "why_no_namespaces"]

_NEW: Final = 0x10000000 | 0x00020000 | 0x40000000 | 0x08000000  #: users, mounts, network, IPC
_RECURSIVE, _SLAVE = 1 << 14, 1 << 19  # mount(2); a slave gets what is mounted later
_NO_SET_USER, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_SET_FLAGS, _UP = 0x8914, 0x41  # netdevice(7): SIOCSIFFLAGS; IFF_UP and IFF_RUNNING
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where the C library keeps it
_TIMEOUT_S: Final = 60
_PROBE: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from hybridperf.system.namespaces import enter_namespaces; enter_namespaces()"
)


def enter_namespaces() -> None:
    """Give this process, and all that it starts, network and shared memory of their own.

    Of network there is the loopback interface alone; shared memory is as large as before. Users
    and their rights to files stay as they are. The process must have one thread.

    Raises:
        OSError: if the kernel refuses.
    """
    user, group, stats = os.geteuid(), os.getegid(), os.statvfs(_SHARED_MEMORY)
    _checked(_LIBC.unshare(_NEW))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(b"none", b"/", None, _RECURSIVE | _SLAVE, None)
    options = f"mode=1777,size={stats.f_blocks * stats.f_frsize}"
    flags = _NO_SET_USER | _NO_DEVICES | _NO_EXECUTION
    _mount(b"tmpfs", _SHARED_MEMORY.encode(), b"tmpfs", flags, options.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


@functools.cache
def why_no_namespaces() -> str:
    """Return why processes cannot have such namespaces here, or ``""`` if they can."""
    command = [sys.executable, "-I", "-c", _PROBE.format(path=sys.path)]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # of memory, processes or time too little
        return f"none could be tried: {type(error).__name__}"
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def _mount(what: bytes, where: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    _checked(_LIBC.mount(what, where, kind, ctypes.c_ulong(flags), data))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
