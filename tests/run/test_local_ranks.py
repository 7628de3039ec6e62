"""Ranks as torchrun would start them, on one machine or as one of several nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hybridperf.run.ending import explain_crash
from hybridperf.run.local_ranks import reserve_port
from tests.run.conftest import LONGEST_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE = """
import json, os, pathlib, random, sys
def note(**more):
    rank = os.environ["RANK"]
    path = pathlib.Path(os.environ["NOTES"], rank)
    path.with_suffix(".new").write_text(json.dumps(dict(os.environ) | more))
    path.with_suffix(".new").rename(path)
"""


def start(
    folder: Path, code: str, ranks: int, place: Sequence[str] = ("0", "1", "")
) -> subprocess.Popen[str]:
    """Start ranks of a trainer that has this ``code``, on one of several nodes."""
    package = folder / "some_trainer"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(NOTE + code)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "hybridperf.run.child"),
            *("hybridperf.run.local_ranks", str(ranks), *place, "some_trainer"),
        ],
        env=os.environ | {"PYTHONPATH": str(folder), "NOTES": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def notes(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)]


def test_ranks_have_the_environment_of_torchrun_and_random_numbers_of_their_own(
    tmp_path: Path,
) -> None:
    code = "note(draw=random.random(), torch='torch' in sys.modules, arguments=sys.argv[1:])"
    process = start(tmp_path, code, ranks=3)
    assert process.communicate(timeout=LONGEST_S)[0] == ""
    assert process.returncode == 0
    found = notes(tmp_path, 3)
    for rank, each in enumerate(found):
        assert {each[key] for key in ("RANK", "LOCAL_RANK", "ROLE_RANK")} == {str(rank)}
        assert {each[key] for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"3"}
        assert (each["MASTER_ADDR"], each["GROUP_RANK"]) == ("127.0.0.1", "0")
        assert (each["torch"], each["arguments"]) == (False, [])  # it does not import torch
    assert len({each["MASTER_PORT"] for each in found}) == 1
    assert len({each["draw"] for each in found}) == 3


def test_ranks_that_use_torch_have_it_already_and_meet(tmp_path: Path) -> None:
    code = """
already = "torch" in sys.modules
import torch
import torch.distributed as dist
assert not torch.cuda.is_initialized()
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
note(already=already, sum=ones.item(), draw=__import__("numpy").random.random())
dist.barrier()
dist.destroy_process_group()
"""
    process = start(tmp_path, code, ranks=2)
    output = process.communicate(timeout=LONGEST_S)[0]
    assert process.returncode == 0, output
    found = notes(tmp_path, 2)
    assert [(each["already"], each["sum"]) for each in found] == [(True, 2)] * 2
    assert found[0]["draw"] != found[1]["draw"]


def test_ranks_of_two_nodes_meet_where_they_are_told(tmp_path: Path) -> None:
    code = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(ranks, torch.full((1,), float(dist.get_rank())))
note(ranks=[each.item() for each in ranks])
dist.destroy_process_group()
"""
    with reserve_port("127.0.0.1") as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        nodes = [start(tmp_path, code, 2, (node, "2", address)) for node in "10"]
        output = [node.communicate(timeout=LONGEST_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], output
    found = notes(tmp_path, 4)
    assert [each["ranks"] for each in found] == [[0, 1, 2, 3]] * 4
    assert [(each["GROUP_RANK"], each["LOCAL_RANK"]) for each in found] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"]) for each in found} == {("4", "2")}


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        ("sys.exit(3)", 3, "rank 2 failed: exit status 3"),
        ("raise ValueError('no loss')", 1, "rank 2 failed: ValueError: no loss"),
        ("os.kill(os.getpid(), 9)", -9, "rank 2 was killed by SIGKILL"),
    ],
)
def test_when_one_rank_fails_the_others_end_and_it_is_named(
    tmp_path: Path, failure: str, status: int, reason: str
) -> None:
    code = f"""
import signal, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note(pid=os.getpid())
while len(list(pathlib.Path(os.environ["NOTES"]).glob("[012]"))) < 3:
    time.sleep(0.01)
if os.environ["RANK"] == "2":
    {failure}
time.sleep(3600)
"""
    process = start(tmp_path, code, ranks=3)
    output = process.communicate(timeout=LONGEST_S)[0]
    assert explain_crash(output, process.returncode) == reason
    assert process.returncode == status
    pids = [int(each["pid"]) for each in notes(tmp_path, 3)]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_ranks_and_none_outlives_their_parent(
    tmp_path: Path, number: signal.Signals
) -> None:
    code = """
import signal, time
def end(*_):
    note(told=True, pid=os.getpid())
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note(pid=os.getpid())
while True:
    time.sleep(0.1)
"""
    process = start(tmp_path, code, ranks=2)
    wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"))
    # From then on it forwards signals instead of ending by them.
    wait_until(lambda: _caught(process.pid) >> (signal.SIGTERM - 1) & 1)
    process.send_signal(number)
    process.communicate(timeout=LONGEST_S)
    told = [each.get("told", False) for each in notes(tmp_path, 2)]
    assert told == [number == signal.SIGTERM] * 2
    assert process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    pids = [int(each["pid"]) for each in notes(tmp_path, 2)]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def _caught(process: int) -> int:
    """Return the bit mask of the signals for which a process has a handler."""
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return int(mask, 16)
