"""The harness is stopped, killed, or meets another one in its folder."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.run.conftest import find, finished, wait_until

if TYPE_CHECKING:
    from tests.run.conftest import Bench


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_harness_seals_the_attempt_as_interrupted(
    bench: Bench, number: signal.Signals
) -> None:
    process = bench.start(FAULT="hang")
    bench.await_batches(40)
    process.send_signal(number)
    done = finished(process)
    assert done.code == 5
    assert (
        f"is sealed as interrupted: stopped by {number.name}; give the same command"
        in done.sentence
    )
    bench.assert_settled()
    assert bench.outcomes() == ["interrupted"]
    (log,) = bench.out.rglob("result_0.txt")
    assert '"key": "run_stop"' in log.read_text()
    assert '"status": "aborted"' in log.read_text()
    bench.assert_goes_on()


def test_a_second_signal_changes_nothing(bench: Bench) -> None:
    process = bench.start(FAULT="stop")  # a stopped rank takes seconds to end
    bench.await_batches(40)
    for _ in range(20):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert finished(process).code == 5
    bench.assert_settled()
    assert bench.outcomes() == ["interrupted"]


def test_a_signal_during_scoring_stops_too(bench: Bench) -> None:
    process = bench.start(FAULT="predict hangs")
    wait_until(lambda: find(bench.out, "ending.json"))
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    done = finished(process)
    assert done.code == 5
    assert "was stopped while its model was scored again; give the same command" in done.sentence
    bench.assert_consistent()
    assert bench.processes_left() == []
    trained = next(bench.out.rglob("log.txt")).read_bytes()
    assert bench.run().code == 0
    bench.assert_settled()
    assert next(bench.out.rglob("result_0.txt")).read_bytes() == trained
    assert bench.outcomes() == ["success"]


def test_a_killed_harness_leaves_no_rank_behind_however_early(bench: Bench) -> None:
    for number, instant_s in enumerate((0.0, 1.5)):  # the rank has just been started; it imports
        process = bench.start(FAULT="init")  # and gets no further
        attempt = f".attempt_{number}/"
        # A child that has not become the rank yet is not seen, also not as one that is left.
        wait_until(partial(bench.processes_left, attempt))
        time.sleep(instant_s)
        process.kill()
        wait_until(lambda: not bench.processes_left())
    process = bench.start(FAULT="hang")
    bench.await_batches(40)
    process.kill()
    wait_until(lambda: not bench.processes_left())
    bench.assert_consistent()
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["interrupted", "interrupted", "interrupted", "success"]
    assert {m["reason"] for m in bench.manifests()} == {"the harness was ended", ""}
    assert len({m["seed"] for m in bench.manifests()}) == 1


def test_a_killed_harness_leaves_no_predictor_behind(bench: Bench) -> None:
    process = bench.start(FAULT="predict hangs")
    wait_until(lambda: find(bench.out, "ending.json") and bench.processes_left())
    time.sleep(0.3)
    process.kill()
    wait_until(lambda: not bench.processes_left())
    trained = next(bench.out.rglob("log.txt")).read_bytes()
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["success"]
    assert next(bench.out.rglob("result_0.txt")).read_bytes() == trained  # not trained again


@pytest.mark.exhaustive
def test_a_harness_killed_at_any_instant_leaves_a_state_from_which_it_goes_on(bench: Bench) -> None:
    chance = random.Random(22)
    start_s = time.monotonic()
    assert bench.run().code == 0
    whole_s = time.monotonic() - start_s
    for trial in range(12):
        process = bench.start(runs=2 + trial)
        time.sleep(chance.uniform(0.15, 1.0) * whole_s)
        process.kill()
        process.communicate()
        bench.assert_consistent()
        wait_until(lambda: not bench.processes_left())
    before = bench.manifests()
    wanted = sum(m["outcome"] == "success" for m in before) + 1
    assert bench.run(runs=wanted).code == 0
    bench.assert_settled()
    after = bench.manifests()
    assert after[: len(before)] == before
    assert [m["attempt"] for m in after] == list(range(len(after)))
    assert set(bench.outcomes()) <= {"success", "interrupted"}
    successes = [m["seed"] for m in after if m["outcome"] == "success"]
    assert len(successes) == len(set(successes)) >= wanted
    interrupted = {m["seed"] for m in after if m["outcome"] == "interrupted"}
    assert len(interrupted - set(successes)) <= 1  # each got its next chance


def test_a_second_harness_in_the_folder_is_refused_and_the_first_unharmed(bench: Bench) -> None:
    first = bench.start(FAULT="slow", FAULT_ONCE=str(bench.note()))
    bench.await_batches()
    second = bench.run()
    assert second.code == 4
    assert f"found one by process {first.pid}; wait until it ends" in second.sentence
    assert finished(first).code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["success"]


def test_runs_in_folders_of_the_same_relative_name_leave_each_other_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [bench.out / name for name in ("one", "two")]
    processes = []
    for folder in folders:
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        processes.append(bench.start("--out", "runs", FAULT="slow" if folder.name == "one" else ""))
        wait_until(lambda folder=folder: find(folder, "pulse.bin"))  # type: ignore[misc]
    assert [finished(process).code for process in processes] == [0, 0]


def test_an_attempt_sealed_before_its_folder_went_is_not_sealed_again(bench: Bench) -> None:
    assert bench.run().code == 0
    before = bench.manifests()
    left = bench.package.folder / ".attempt_0"
    left.mkdir()
    (left / "run.json").write_text("{}")  # the rest is removed already
    (bench.package.folder / ".result_1.txt.x1y2z3").write_text("half")
    (bench.package.folder / ".predictions_1.npy.x1y2z3").write_text("half")
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.manifests() == before


def test_a_left_behind_attempt_is_not_sealed_by_a_command_with_other_overrides(
    bench: Bench,
) -> None:
    process = bench.start(FAULT="hang")
    bench.await_batches(40)
    process.kill()
    wait_until(lambda: not bench.processes_left())

    other = bench.run("--set", "optimizer.lr=0.05")

    assert other.code == 2
    assert "as in the unfinished run in this folder" in other.sentence
    assert bench.outcomes() == []
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["interrupted", "success"]


def test_a_left_behind_attempt_is_sealed_in_order_after_the_machine_started_anew(
    bench: Bench,
) -> None:
    process = bench.start(FAULT="hang")
    bench.await_batches(40)
    process.kill()
    wait_until(lambda: not bench.processes_left())
    (order,) = bench.orders()
    facts = json.loads(order.read_text())
    facts["clock"]["monotonic_ns"] += 10**15  # the clock before counted from an earlier start
    order.write_text(json.dumps(facts))
    moved = bench.out.with_name("moved")
    bench.out.rename(moved)
    bench.out = moved
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["interrupted", "success"]
    assert {m["seed"] for m in bench.manifests()} == {facts["seed"]}
    assert bench.rules_broken() == {"result.ended"}


def test_killing_the_launcher_itself_is_a_crash(bench: Bench) -> None:
    process = bench.start(FAULT="hang")
    bench.await_batches(40)
    for rank in bench.processes_left():
        os.kill(rank.pid, signal.SIGKILL)
    done = finished(process)
    assert done.code == 4
    assert "sealed as crashed: the trainer was killed by SIGKILL" in done.sentence
    bench.assert_settled()
