"""Network and shared memory of one's own, or the reason why there are none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.system import namespaces
from hybridperf.system.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOW = """
import os, socket
from hybridperf.system.namespaces import enter_namespaces
before = os.getuid(), os.statvfs("/dev/shm").f_blocks
enter_namespaces()
assert (os.getuid(), os.statvfs("/dev/shm").f_blocks) == before
assert os.listdir("/dev/shm") == []
assert [name for _, name in socket.if_nameindex()] == ["lo"]
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=5).close()
"""


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    why_no_namespaces.cache_clear()
    yield
    why_no_namespaces.cache_clear()


@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
def test_a_process_has_a_loopback_interface_and_shared_memory_of_the_same_size() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_kernel_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        namespaces, "_PROBE", "raise PermissionError(1, 'not permitted'){path[0]:.0}"
    )
    assert why_no_namespaces() == "PermissionError: [Errno 1] not permitted"


@pytest.mark.parametrize("error", [OSError(11, "busy"), subprocess.TimeoutExpired("python", 60)])
def test_a_machine_without_processes_or_time_to_spare_has_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert why_no_namespaces() == f"none could be tried: {type(error).__name__}"
