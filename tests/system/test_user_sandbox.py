"""What a user without privileges cannot do to his own files and processes from the sandbox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.system.landlock import landlock_abi
from hybridperf.system.namespaces import why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    landlock_abi() < 6 or bool(why_no_namespaces()),
    reason=why_no_namespaces() or "needs Landlock with its scopes (Linux 6.12)",
)

#: tries, in the sandbox, to change what lies in its folder and the process that started it
TRY = """
import ctypes, json, os, resource, socket, sys
sys.path[:] = json.loads(sys.argv[1])
from hybridperf.system.landlock import Policy, enter_sandbox
folder, seen, mine = sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
if (user := int(sys.argv[2])) != os.geteuid():
    os.setgroups([])
    os.setresuid(user, user, user)  # not before: the interpreter may be where others cannot read
    libc.prctl(4, 1)  # PR_SET_DUMPABLE, as in a process that was started by the user
server = socket.socket(socket.AF_UNIX)
server.bind(f"{folder}/hidden")
server.listen()
for place in (seen, mine, folder):
    open(f"{place}/file", "w").close()
os.symlink(seen, f"{folder}/link")
other = os.getpid()
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
visible = (f"{folder}/link", "/usr", "/lib", "/lib64", "/bin", "/etc")
enter_sandbox(Policy(("/",), (), (mine,), (), None, visible))
def call(*arguments):
    if libc.syscall(*map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")
process, users, best_effort = 1, 3, 2 << 13
priority, attributes = (251, 314) if os.uname().machine == "x86_64" else (30, 274)
tried = {
    "connect": lambda: socket.socket(socket.AF_UNIX).connect(f"{folder}/hidden"),
    "stat": lambda: os.stat(f"{folder}/file"),
    "chmod": lambda: os.chmod(f"{seen}/file", 0o777),
    "utime": lambda: os.utime(f"{seen}/file"),
    "setxattr": lambda: os.setxattr(f"{seen}/file", "user.x", b""),
    "prlimit": lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (9, 9)),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, other, 9),
    "setpriority of all": lambda: os.setpriority(os.PRIO_USER, 0, 9),
    "scheduler": lambda: os.sched_setscheduler(other, os.SCHED_IDLE, os.sched_param(0)),
    "parameters": lambda: os.sched_setparam(other, os.sched_param(0)),
    "attributes": lambda: call(attributes, other, 0, 0),
    "priority of input": lambda: call(priority, process, other, best_effort),
    "priority of all input": lambda: call(priority, users, 0, best_effort),
    "kill": lambda: os.kill(other, 0),
    "own file": lambda: open(f"{folder}/link/file").read(),
    "own chmod": lambda: os.chmod(f"{mine}/file", 0o700),
    "own limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "own priority": lambda: os.nice(1),
    "own priority of input": lambda: call(priority, process, 0, best_effort),
}
found = {}
for name, attempt in tried.items():
    try:
        attempt()
        found[name] = ""
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture(params=[0, 4711], ids=["root", "user"])
def user(request: pytest.FixtureRequest) -> int:
    """A user's number; the user that runs the tests is the only one that it can be but for root."""
    number: int = request.param
    if os.geteuid() == 0 or number == os.geteuid():
        return number
    if number == 0:
        pytest.skip("needs root")
    return os.geteuid()


@pytest.fixture
def folders(user: int) -> Iterator[list[Path]]:
    """Three folders of ``user``: one to be hidden, one that is seen and one that is writable."""
    top = Path(tempfile.mkdtemp())
    found = [top / name for name in ("hidden", "seen", "mine")]
    for folder in (top, *found):
        folder.mkdir(exist_ok=True)
        os.chown(folder, user, -1)
    yield found
    shutil.rmtree(top)


def test_files_and_processes_of_the_user_are_out_of_reach(user: int, folders: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY, json.dumps(sys.path), str(user), *map(str, folders)],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [name for name in found if name.startswith("own ") and found[name]] == []
    others = {name: error for name, error in found.items() if not name.startswith("own ")}
    assert [name for name, error in others.items() if not error] == []
    assert others["connect"] == others["stat"] == "FileNotFoundError"
    assert others["chmod"] == others["utime"] == others["setxattr"] == "OSError"  # read-only
