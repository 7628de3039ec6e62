"""Failures of the machine are told from those of the trainer by what the kernel says."""

from __future__ import annotations

import json
import signal
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridperf.run import ending
from hybridperf.run.ending import MachineWatch
from hybridperf.system.host import MIN_SHARED_MEMORY_BYTES
from tests.packages import seal
from tests.run.conftest import finished

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.conftest import Bench


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's counters, as the test writes them."""
    path = tmp_path / "vmstat"
    path.write_text("oom_kill 3\n")
    monkeypatch.setattr(ending, "_COUNTERS", path)
    return path


def test_a_rank_that_the_kernel_killed_for_memory(counters: Path, tmp_path: Path) -> None:
    watch = MachineWatch(tmp_path)
    assert watch.failure(-signal.SIGKILL) == ""  # somebody else killed it

    counters.write_text("nr_dirty 7\noom_kill 4\n")

    assert "lack of memory" in watch.failure(-signal.SIGKILL)
    assert watch.failure(1) == ""


def test_a_full_disk(counters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counters.exists()
    assert MachineWatch(tmp_path).failure(1) == ""

    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=5000))
    monkeypatch.setattr(ending, "shutil", usage)

    assert "No space left on device" in MachineWatch(tmp_path).failure(1)


SMALL_SHARED_MEMORY = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"',
    "sh",
)


def test_a_run_whose_shared_memory_is_too_small_is_sealed_and_made_again(bench: Bench) -> None:
    if subprocess.run([*SMALL_SHARED_MEMORY, "true"], capture_output=True, check=False).returncode:
        pytest.skip("users may not make namespaces here")
    honest = bench.starter
    bench.starter = SMALL_SHARED_MEMORY

    done = bench.strike("share memory")

    assert done.code == 4
    assert "environment: its /dev/shm has 1 MiB, too little for the memory that its processes" in (
        done.sentence
    )
    assert bench.outcomes() == ["environment"]
    bench.assert_settled()
    bench.starter = honest
    bench.assert_goes_on()


def test_a_bus_error_is_the_machine_s_where_shared_memory_is_small(
    counters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counters.exists()
    monkeypatch.setattr(ending, "shared_memory_bytes", lambda: MIN_SHARED_MEMORY_BYTES)
    assert MachineWatch(tmp_path).failure(-signal.SIGBUS) == ""

    monkeypatch.setattr(ending, "shared_memory_bytes", lambda: MIN_SHARED_MEMORY_BYTES - 1)

    assert "/dev/shm has 256 MiB" in MachineWatch(tmp_path).failure(-signal.SIGBUS)
    assert MachineWatch(tmp_path).failure(1) == ""


@pytest.mark.parametrize("plan", ["dp=1", "dp=2"])
def test_what_a_trainer_says_of_the_machine_does_not_count(bench: Bench, plan: str) -> None:
    """It is sealed as the trainer's failure, also where shared memory is small."""
    if subprocess.run([*SMALL_SHARED_MEMORY, "true"], capture_output=True, check=False).returncode:
        pytest.skip("users may not make namespaces here")
    bench.starter = SMALL_SHARED_MEMORY

    done = bench.strike("blame the machine", "--plan", plan)

    assert done.code == 4
    assert "is sealed as crashed: " in done.sentence
    assert bench.outcomes() == ["crashed"]
    bench.assert_goes_on("--plan", plan)


def test_each_attempt_that_failed_with_the_machine_is_chained_and_shown(bench: Bench) -> None:
    """As are those of earlier harnesses, of which only their number is known."""
    order = bench.kill_harness_of_hanging_run()
    facts = json.loads(order.read_text())
    order.write_text(json.dumps(facts | {"machine_start": "an earlier one"}))
    assert bench.run().code == 0
    assert "result.chain" not in bench.rules_broken()
    assert "found 1 environment" in bench.say("check", str(bench.out)).out
    assert "1 environment" in bench.say("score", str(bench.out)).out

    manifest = bench.out / next(bench.out.rglob("result_1.json"))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"retries": 2}))

    seal(bench.out)
    for command in ("check", "score"):
        done = finished(bench.command(command, str(bench.out), COLUMNS="300"))
        said = " ".join(done.out.split())
        assert "1 environment, 2 of which no log was kept" in said


def test_a_run_during_which_the_machine_stopped_is_made_again(bench: Bench) -> None:
    order = bench.kill_harness_of_hanging_run()
    facts = json.loads(order.read_text())
    order.write_text(json.dumps(facts | {"machine_start": "an earlier one"}))

    assert bench.run().code == 0

    bench.assert_settled()
    first, second = bench.manifests()
    found = [first[key] for key in ("outcome", "attempt", "seed", "reason")]
    assert found == ["environment", 0, facts["seed"], "the machine was started again"]
    assert (second["outcome"], second["seed"]) == ("success", facts["seed"])
