"""A run whose task asks for checkpoints resumes after an interruption, and says so."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.report.evidence import attempts_of
from hybridperf.report.judgement import read_entries
from hybridperf.run.resume import (
    begin_checkpoint,
    checkpoint_folder,
    complete_checkpoint,
    sweep_checkpoints,
)
from tests.run.conftest import find, finished, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.log import Log
    from tests.run.command_server import Command
    from tests.run.conftest import Bench

GAP_S = 0.5
EPOCH = 1195 // 32  #: steps of the first epoch


@pytest.fixture
def saving(bench: Bench) -> Bench:
    """A bench whose task asks for checkpoints."""
    path = bench.tasks / "resnet/laptop.toml"
    path.write_text(
        path.read_text().replace("every_epochs = 1", "every_epochs = 1\ncheckpoint = true")
    )
    return bench


def interrupt(bench: Bench, number: signal.Signals, **keywords: Any) -> Any:
    """End the harness in the second epoch, and wait a while."""
    once = bench.note()
    process = bench.start(FAULT="hang", FAULT_ONCE=str(once), **keywords)
    wait_until(once.read_text)  # the trainer chooses its fault as it starts
    wait_until(lambda: any(checkpoint_folder(path, EPOCH).is_dir() for path in checkpoints(bench)))
    bench.await_batches(43)  # the evaluation is in the log, and the second epoch has begun
    process.send_signal(number)
    done = finished(process)
    wait_until(lambda: not bench.processes_left())
    time.sleep(GAP_S)
    return done


def checkpoints(bench: Bench) -> list[Path]:
    return find(bench.out, "checkpoints")


def logs_a_checkpoint(bench: Bench) -> bool:
    """Tell whether the log of the attempt under way has a checkpoint."""
    with contextlib.suppress(FileNotFoundError):  # sealed meanwhile
        return any(keys.CHECKPOINT in log.read_text() for log in find(bench.out, "log.txt"))
    return False


def log_of(bench: Bench, number: int = 0) -> Log:
    (path,) = bench.out.rglob(f"result_{number}.txt")
    return read_log(path)


def assert_resumed_once(bench: Bench) -> None:
    """The one attempt has everything an uninterrupted one has, the gap included."""
    bench.assert_settled()
    assert bench.outcomes() == ["success"]
    assert bench.rules_broken() == set()
    log, (manifest,) = log_of(bench), bench.manifests()
    (resumed,) = log.all(keys.RESUMED)
    assert isinstance(resumed.value, dict)
    assert resumed.value["epoch"] == 1
    before = log.entries[[entry.line for entry in log.entries].index(resumed.line) - 2]
    # The harness measures the gap before it writes, which takes a while on a busy machine.
    assert GAP_S <= resumed.value["gap_s"] <= (resumed.time_ms - before.time_ms) / 1000 + 1e-6
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    assert start is not None
    assert stop is not None
    took_s = (stop.time_ms - start.time_ms) / 1000
    assert took_s > GAP_S
    assert manifest["supervisor"]["run_s"] > GAP_S  # how near to the log's is for the rules
    epochs = [entry.metadata["epoch_num"] for entry in log.all(keys.EVAL_ACCURACY)]
    assert epochs == list(range(1, len(epochs) + 1))
    assert len(log.all(keys.CHECKPOINT)) == len(epochs) - 1  # the last one reached the target
    ((attempt,),) = map(attempts_of, read_entries(bench.out))
    assert attempt.role.endswith(f"; resumed once, after {resumed.value['gap_s']:.1f} s")


def test_a_run_whose_harness_was_killed_goes_on(saving: Bench) -> None:
    interrupt(saving, signal.SIGKILL)

    assert saving.run().code == 0

    assert_resumed_once(saving)


def test_a_run_whose_schedule_counts_samples_goes_on(saving: Bench) -> None:
    path = saving.tasks / "resnet/laptop.toml"
    epochs = "first_epoch = 1\nevery_epochs = 1\n"
    path.write_text(path.read_text().replace(epochs, "every_samples = 700\n"))
    saving.change_task(epochs=2, target=1.0)
    process = saving.start(FAULT="slow")
    step = 672 // 32
    wait_until(lambda: any(checkpoint_folder(each, step).is_dir() for each in checkpoints(saving)))
    saving.await_batches(27)  # the evaluation is in the log, and the second block has begun
    process.send_signal(signal.SIGKILL)
    finished(process)
    wait_until(lambda: not saving.processes_left())

    assert saving.run().code == 1, "no model reaches the target"

    assert saving.outcomes() == ["target_missed"]
    assert not {rule for rule in saving.rules_broken() if rule.startswith(("run.", "log."))}
    (resumed,) = log_of(saving).all(keys.RESUMED)
    assert isinstance(resumed.value, dict)
    assert (resumed.value["samples"], resumed.value["first_step"]) == (672, step)
    evaluated = log_of(saving).all(keys.EVAL_ACCURACY)
    assert [entry.metadata["samples_count"] for entry in evaluated] == [672, 1376, 2080]


def test_a_run_that_was_told_to_stop_goes_on(saving: Bench) -> None:
    done = interrupt(saving, signal.SIGTERM)
    assert done.code == 5
    assert (
        f"was stopped by SIGTERM after step {EPOCH}; give the same command again" in done.sentence
    )
    assert saving.outcomes() == []

    assert saving.run().code == 0

    assert_resumed_once(saving)


def test_wall_time_bridges_a_new_start_of_the_machine(saving: Bench) -> None:
    interrupt(saving, signal.SIGKILL)
    (order,) = saving.orders()
    facts = json.loads(order.read_text())
    facts["clock"]["monotonic_ns"] += 10**15
    order.write_text(json.dumps(facts | {"machine_start": "an earlier one"}))

    assert saving.run().code == 0

    assert_resumed_once(saving)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("code", {"suite_sha256": "another"}),
        ("clock", {"wall_ms": 2**42, "monotonic_ns": 0}),
    ],
)
def test_what_is_no_longer_the_same_run_is_sealed_as_interrupted(
    saving: Bench, change: str, value: dict[str, object]
) -> None:
    interrupt(saving, signal.SIGKILL)
    (order,) = saving.orders()
    facts = json.loads(order.read_text()) | {change: value}
    if change == "clock":
        (log,) = saving.out.rglob("log.txt")
        last = log.read_bytes().splitlines()[-1]
        future = json.loads(last.partition(b" ")[2])["time_ms"] + 10**7
        facts["clock"] = {"wall_ms": future - 2 * 10**7, "monotonic_ns": time.monotonic_ns()}
    order.write_text(json.dumps(facts))

    saving.run()

    assert saving.outcomes()[0] == "interrupted"
    assert log_of(saving).first(keys.RESUMED) is None


@pytest.mark.exhaustive
def test_a_run_killed_at_any_instant_again_and_again_is_one_run_in_the_end(saving: Bench) -> None:
    chance = random.Random(4)
    begun: tuple[Callable[[], object], ...] = (
        lambda: find(saving.out, "log.txt"),
        lambda: find(saving.out, f"step_{EPOCH}"),
        lambda: logs_a_checkpoint(saving),  # from then on the next command resumes
    )
    for trial in range(6):
        process = saving.start(FAULT="slow")
        wait_until(begun[trial % 3])
        time.sleep(chance.uniform(0.0, 0.6))
        process.kill()
        process.communicate()
        wait_until(lambda: not saving.processes_left())
        saving.assert_consistent()

    assert saving.run().code == 0

    saving.assert_settled()
    assert saving.rules_broken() <= {"result.ended"}
    assert len({manifest["seed"] for manifest in saving.manifests()}) == 1
    assert saving.outcomes()[-1] == "success"
    assert any(log_of(saving, m["attempt"]).first(keys.RESUMED) for m in saving.manifests())


def test_a_rank_that_fails_is_a_crash_all_the_same(saving: Bench) -> None:
    done = saving.strike("raise")

    assert done.code == 4
    assert saving.outcomes() == ["crashed"]


def test_a_checkpoint_is_complete_or_not_there_and_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        folder = begin_checkpoint(tmp_path, step)
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/part").write_text("weights")
        assert not checkpoint_folder(tmp_path, step).exists()
        complete_checkpoint(tmp_path, step)
        assert (checkpoint_folder(tmp_path, step) / "deep/part").read_text() == "weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_2"]
    begin_checkpoint(tmp_path, 11).mkdir()

    sweep_checkpoints(tmp_path, last=2)

    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


@pytest.mark.exhaustive
def test_the_loss_curve_of_a_run_killed_at_a_random_step_is_that_of_one_never_killed(
    saving: Bench, tmp_path: Path
) -> None:
    saving.change_task(epochs=2, width=4)  # the target is further away: the run ends there
    assert finished(start_real(saving)).code == 1
    whole = log_of(saving)
    saving.out = tmp_path / "interrupted"
    process = start_real(saving)
    saving.await_batches(random.Random(11).randint(EPOCH + 14, 2 * EPOCH))  # in the second epoch
    process.kill()
    process.communicate()
    wait_until(lambda: not saving.processes_left())

    assert finished(start_real(saving)).code == 1

    again = log_of(saving)
    assert len(again.all(keys.RESUMED)) == 1
    assert saving.outcomes() == ["target_missed"]
    assert len(curve(whole)) == 4
    assert curve(again) == curve(whole)


def start_real(bench: Bench) -> Command:
    """Start a run of the reference trainer, always with the same seed."""
    return bench.start(trainer="hybridperf_reference", SEED="2718", OMP_NUM_THREADS="1")


def curve(log: Log) -> dict[object, object]:
    """Return quality and mean loss of each epoch."""
    found: dict[object, object] = {}
    for entry in log.all(keys.EVAL_ACCURACY):
        found["quality", entry.metadata["epoch_num"]] = entry.value
    for entry in log.all(keys.TRACKED_STATS):
        if isinstance(entry.value, dict) and "loss" in entry.value:
            found["loss", entry.metadata["epoch_num"]] = entry.value["loss"]
    return found
