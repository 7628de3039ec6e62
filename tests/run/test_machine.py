"""Failures of the machine are told from those of the trainer by what the kernel says."""

from __future__ import annotations

import json
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridperf.run import machine
from hybridperf.run.machine import MachineWatch
from hybridperf.system.host import LEAST_SHARED_BYTES
from tests.run.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.conftest import Bench


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's counters, as the test writes them."""
    path = tmp_path / "vmstat"
    path.write_text("oom_kill 3\n")
    monkeypatch.setattr(machine, "_COUNTERS", path)
    return path


def test_a_rank_that_the_kernel_killed_for_memory(counters: Path, tmp_path: Path) -> None:
    watch = MachineWatch(tmp_path)
    assert watch.failure(-signal.SIGKILL, "") == ""  # somebody else killed it

    counters.write_text("nr_dirty 7\noom_kill 4\n")

    assert "lack of memory" in watch.failure(-signal.SIGKILL, "")
    assert "lack of memory" in watch.failure(1, "rank 2 was killed by SIGKILL")
    assert watch.failure(1, "rank 0 failed: MemoryError") == ""


def test_what_a_trainer_says_of_the_disk_does_not_count(
    counters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counters.exists()
    said = "rank 0 failed: OSError: No space left on device"
    assert MachineWatch(tmp_path).failure(1, said) == ""

    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=5000))
    monkeypatch.setattr(machine, "shutil", usage)

    assert "No space left on device" in MachineWatch(tmp_path).failure(1, "exit status 1")


SMALL_SHARED_MEMORY = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"',
    "sh",
)


def test_a_run_whose_shared_memory_is_too_small_is_not_published(bench: Bench) -> None:
    if subprocess.run([*SMALL_SHARED_MEMORY, "true"], capture_output=True, check=False).returncode:
        pytest.skip("users may not make namespaces here")
    honest = bench.starter
    bench.starter = SMALL_SHARED_MEMORY

    done = bench.strike("share memory")

    assert done.code == 4
    assert "failed: its /dev/shm has 1 MiB, too little for the memory that its processes share" in (
        done.sentence
    )
    assert bench.manifests() == []
    assert bench.processes_left() == []
    bench.starter = honest
    assert bench.strike("share memory").code == 0
    bench.assert_settled()
    assert [manifest["retries"] for manifest in bench.manifests()] == [1]


@pytest.mark.parametrize(
    "said",
    [
        "rank 1 was killed by SIGBUS",
        "rank 0 failed: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It",
        "rank 0 failed: RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1>",
        "RuntimeError: unable to write to file </torch_7_1_0>: No space left on device (28)",
    ],
)
def test_words_about_shared_memory_count_only_where_it_is_small(
    counters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    assert counters.exists()
    monkeypatch.setattr(machine, "shared_memory_bytes", lambda: LEAST_SHARED_BYTES)
    assert MachineWatch(tmp_path).failure(1, said) == ""

    monkeypatch.setattr(machine, "shared_memory_bytes", lambda: LEAST_SHARED_BYTES - 1)

    assert "/dev/shm has 256 MiB" in MachineWatch(tmp_path).failure(1, said)
    assert "/dev/shm has 256 MiB" in MachineWatch(tmp_path).failure(1, "exit status 1", said)
    assert MachineWatch(tmp_path).failure(1, "rank 0 failed: ValueError: x") == ""


def test_a_run_during_which_the_machine_stopped_is_made_again(bench: Bench) -> None:
    process = bench.start(FAULT="hang")
    bench.await_batches(42)
    process.kill()
    process.communicate()
    wait_until(lambda: not bench.processes_left())
    (order,) = bench.orders()
    facts = json.loads(order.read_text())
    order.write_text(json.dumps(facts | {"machine_start": "an earlier one"}))

    assert bench.run().code == 0

    bench.assert_settled()
    (manifest,) = bench.manifests()
    found = [manifest[key] for key in ("outcome", "attempt", "seed", "retries")]
    assert found == ["success", 0, facts["seed"], 1]
