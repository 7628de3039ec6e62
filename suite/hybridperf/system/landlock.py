"""Landlock, the unprivileged sandbox of the Linux kernel.

Namespaces hide what Landlock does not restrict; a seccomp filter protects limits and priorities of
other processes. Source: landlock(7), seccomp(2), and
Documentation/userspace-api/landlock.rst of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import struct
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.system.namespaces import enter_namespaces

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Policy", "enter_sandbox", "landlock_abi", "why_no_landlock"]

# System calls and constants of landlock(7); the numbers are the same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION: Final = 1
_BENEATH, _PORT = 1, 2  # kinds of rules
_NO_NEW_PRIVILEGES: Final = 38  # prctl(2)
_SET_FILTER, _NO_SLOWER = 1, 1 << 2  # seccomp(2); the flag leaves speculation on before Linux 5.16
_CAPABILITIES_3: Final = 0x20080522  #: version of capset(2)
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHARACTER, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_BIND, _CONNECT = 1 << 0, 1 << 1
_SCOPES: Final = 1 << 0 | 1 << 1  #: abstract Unix sockets, signals
_FILE_RIGHTS: Final = (
    _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
)  #: rights to files; the rest are rights to folders
#: rights by the first Landlock ABI that has them
_RIGHTS: Final = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL}
_NETWORK_ABI, _SCOPE_ABI = 4, 6

# The system calls that change another process of the same user, by machine: audit architecture,
# number of seccomp, and by number of each call the arguments and values that mean the caller. In
# this order: prlimit, setpriority, sched_setscheduler, _setparam and _setattr, and ioprio_set.
# Affinity is not filtered, since libraries set the affinity of their own threads by number.
_ZERO: Final = ((0, 0),)
_FILTERED_CALLS: Final = {
    "x86_64": (
        0xC000003E,
        317,
        {302: _ZERO, 141: ((0, 0), (1, 0)), **dict.fromkeys((144, 142, 314), _ZERO)}
        | {251: ((0, 1), (1, 0))},
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {261: _ZERO, 140: ((0, 0), (1, 0)), **dict.fromkeys((119, 118, 274), _ZERO)}
        | {30: ((0, 1), (1, 0))},
    ),
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # bpf(4)
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000 | errno.EPERM
_X32: Final = 0x40000000  #: first number of the x32 interface
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # bytes in seccomp_data


@dataclass(frozen=True, slots=True)
class Policy:
    """The rights of a process in the sandbox."""

    readable: tuple[str, ...]  #: files, and folders with their contents
    listed: tuple[str, ...]  #: folders whose listings are readable
    writable: tuple[str, ...]  #: folders, with their contents
    devices: tuple[str, ...]
    ports: tuple[int, int] | None  #: first and last TCP port to connect and bind to
    #: files and folders in the mount namespace; None: no namespaces of its own
    visible: tuple[str, ...] | None = None
    network: bool = False  #: whether the network is the machine's in spite of namespaces

    def write(self, folder: Path) -> Path:
        """Write the policy to a file in ``folder``; return the file."""
        path = folder / "policy.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Return the policy that `write` wrote to ``path``."""
        values = json.loads(path.read_text())
        lists = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
        return cls(**values | lists)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


@functools.cache
def landlock_abi() -> int:
    """Return the version of Landlock that the kernel offers; 0 if it offers none."""
    return max(0, _call(_CREATE, None, 0, _VERSION))


def why_no_landlock() -> str:
    """Return why the kernel offers no Landlock, or ``""`` if it does."""
    if landlock_abi():
        return ""
    _call(_CREATE, None, 0, _VERSION)
    reasons = {
        errno.ENOSYS: "the kernel has no Landlock, or a container's filter hides it",
        errno.EOPNOTSUPP: "Landlock is switched off at the start of the kernel",
        errno.EPERM: "a container's filter forbids Landlock",
    }
    number = ctypes.get_errno()
    return reasons.get(number, os.strerror(number))


def enter_sandbox(policy: Policy) -> None:
    """Restrict this process and its children to ``policy`` for good, without privileges.

    Raises:
        OSError: if the kernel refuses.
    """
    if policy.visible is not None:
        folders = filter(os.path.isdir, policy.devices)
        changed = (*policy.writable, *folders)
        enter_namespaces(policy.visible, changed, network=policy.network)
    abi = landlock_abi()
    rights = sum(right for since, right in _RIGHTS.items() if since <= abi)
    attributes = _Ruleset(
        rights,
        _BIND | _CONNECT if abi >= _NETWORK_ABI else 0,
        _SCOPES if abi >= _SCOPE_ABI else 0,
    )
    size = 8 if abi < _NETWORK_ABI else 16 if abi < _SCOPE_ABI else 24
    ruleset = _check(_call(_CREATE, ctypes.byref(attributes), size, 0))
    for places, allowed in (
        (policy.readable, _READ | _LIST | _EXECUTE),
        (policy.listed, _LIST),
        (policy.writable, rights & ~(_MAKE_CHARACTER | _MAKE_BLOCK)),
        (policy.devices, rights & ~(_MAKE_CHARACTER | _MAKE_BLOCK)),
    ):
        for place in places:
            _allow(ruleset, place, allowed & rights)
    if policy.ports and abi >= _NETWORK_ABI:
        for port in (0, *range(policy.ports[0], policy.ports[1] + 1)):
            _check(_call(_ADD, ruleset, _PORT, ctypes.byref(_Port(_BIND | _CONNECT, port)), 0))
    _check(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _filter_system_calls()
    _drop_capabilities()
    _check(_call(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _filter_system_calls() -> None:
    """Install a seccomp filter against changes of other processes' limits and scheduling."""
    known = _FILTERED_CALLS.get(os.uname().machine)
    if known is None or sys.maxsize < 2**32:
        return
    machine, seccomp, calls = known
    # An instruction: opcode, jump if true, jump if false, operand.
    steps = [(_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _REFUSED)]
    steps += [(_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSED)]
    for number, arguments in calls.items():
        for argument, own in arguments:
            steps += [(_LOAD, 0, 0, _NUMBER_AT), (_EQUAL, 0, 3, number)]
            steps += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), (_EQUAL, 1, 0, own)]
            steps += [(_RETURN, 0, 0, _REFUSED)]
    steps += [(_RETURN, 0, 0, _ALLOWED)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    _check(_call(seccomp, _SET_FILTER, _NO_SLOWER, header))


def _drop_capabilities() -> None:
    """Drop root's capabilities, such as reading other processes' environments."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    nothing = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, in two halves
    _check(_LIBC.capset(header, nothing))


def _allow(ruleset: int, place: str, allowed: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is gone, so there is nothing to allow
        return
    try:
        is_folder = os.path.isdir(place)  # noqa: PTH112 - faster: many thousand a run
        rights = allowed if is_folder else allowed & _FILE_RIGHTS
        rule = _Beneath(rights, descriptor)
        _check(_call(_ADD, ruleset, _BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *map(_long, arguments))
    return result


def _long(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result


_LIBC: Final = ctypes.CDLL(None, use_errno=True)
