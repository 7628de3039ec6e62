"""Trainers that put links and pipes in place of files, forge the harness's, or tell secrets."""

from __future__ import annotations

import json
import os
import signal
from shutil import copyfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.chain import SUMS
from hybridperf.log.package import Package
from hybridperf.log.reader import read_log
from hybridperf.run import models
from hybridperf.run.files import remove_folder
from hybridperf.run.models import keep_model, remove_excess_weights
from hybridperf.run.spec import weights_part
from hybridperf.tasks.registry import tensor_values
from hybridperf.untrusted import WEIGHTS_CAP_BYTES
from tests.run.conftest import find, finished, limits, wait_until
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.run.conftest import Bench


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("nobody else's business")
    return path


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("link the log", "log.txt, which is a symbolic link"),
        ("pipe for a log", "log.txt, which is a pipe"),
        ("pipe for the output", "output.txt, which is a pipe"),
        ("link the weights", "a symbolic link"),
    ],
)
def test_a_link_or_pipe_for_a_file_is_neither_followed_nor_waited_for(
    bench: Bench, victim: Path, fault: str, reason: str
) -> None:
    done = bench.strike(fault, "--mode", "open", VICTIM=str(victim))

    assert done.code == 4
    assert "is sealed as crashed: the trainer replaced " in done.sentence
    assert reason in done.sentence
    bench.assert_settled()
    assert bench.outcomes() == ["crashed"]
    assert victim.read_text() == "nobody else's business"
    assert not any(victim.read_text() in path.read_text() for path in bench.out.rglob("*.txt"))
    bench.assert_goes_on("--mode", "open")


def test_weights_without_end_are_neither_hashed_nor_copied(bench: Bench) -> None:
    done = bench.strike("large weights", "--keep-weights")

    assert done.code == 4
    reason = f"the trainer saved {2**40} bytes of weights, and {WEIGHTS_CAP_BYTES} is the most"
    assert f"is sealed as crashed: {reason} in the open division" in done.sentence
    bench.assert_settled()
    bench.assert_goes_on()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("many parts", "saved weights in 20000 files, and 1000 is the most"),
        ("a part with a long name", "'part_aaaa"),
    ],
)
def test_weights_whose_names_would_fill_the_manifest_are_refused(
    bench: Bench, fault: str, reason: str
) -> None:
    done = bench.strike(fault)

    assert done.code == 4
    assert reason in done.sentence
    bench.assert_settled()
    bench.assert_goes_on()


def test_a_folder_deeper_than_any_path_is_removed(bench: Bench) -> None:
    try:
        done = bench.strike("deep folder")

        assert done.code == 0, done
        bench.assert_settled()
        assert bench.outcomes() == ["success"]
    finally:
        remove_folder(bench.out)  # which pytest cannot, and would fail for all that follows


def test_weights_of_the_closed_division_are_no_larger_than_the_task_s(tmp_path: Path) -> None:
    spec = run_spec(tmp_path)
    values = tensor_values(spec.task())
    assert values
    spec.weights.mkdir(parents=True)
    part = weights_part(spec.weights, 0)
    part.touch()

    os.truncate(part, 8 * values + 2**20)
    assert remove_excess_weights(spec) == ""
    assert part.exists()

    os.truncate(part, 8 * values + 2**20 + 1)
    assert f"is the most for the {values} numbers of" in remove_excess_weights(spec)
    assert not part.exists()


def test_weights_that_do_not_fit_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(tmp_path / "attempt", keep_weights=True)
    package = Package(tmp_path, "local", "here", "resnet-laptop")
    package.folder.mkdir(parents=True)
    spec.weights.mkdir(parents=True)
    weights_part(spec.weights, 0).write_bytes(bytes(1001))
    spec.final_predictions.write_bytes(b"")
    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=1000), copyfile=copyfile)
    monkeypatch.setattr(models, "shutil", usage)

    with pytest.raises(OSError, match="No space left on device"):
        keep_model(spec, package)

    assert not list(package.folder.glob("weights_*"))


def test_what_a_trainer_writes_in_the_harnesss_files_is_not_believed(bench: Bench) -> None:
    assert bench.strike("forge files", "--mode", "open").code == 0

    (manifest,) = bench.manifests()
    assert manifest["plan"] == "dp=1"
    assert manifest["rescoring"]["quality"] == pytest.approx(manifest["rescoring"]["reported"])
    assert manifest["rescoring"]["reported"] < 1
    assert manifest["supervisor"]["run_s"] < 98765
    assert bench.rules_broken() == set()


def test_forged_files_of_a_killed_run_are_not_believed_by_the_next_harness(bench: Bench) -> None:
    order = bench.kill_harness_of_hanging_run()
    ending = {"outcome": "success", "reason": "", "initialisation_s": 0.1, "run_s": 0.001}
    order.with_name("ending.json").write_text(json.dumps(ending))

    done = bench.run()

    assert done.code == 4
    assert "is sealed as crashed: ending.json was changed: the log does not end so" in done.sentence
    bench.assert_goes_on()


@pytest.mark.parametrize(
    ("changes", "what"), [({"seed": 1}, "its seed"), ({"plan": "dp=2"}, "its plan")]
)
def test_a_changed_order_of_a_killed_run_is_not_believed(
    bench: Bench, changes: dict[str, object], what: str
) -> None:
    order = bench.kill_harness_of_hanging_run()
    order.write_text(json.dumps(json.loads(order.read_text()) | changes))

    done = bench.run()

    assert done.code == 4
    assert f"is sealed as crashed: run.json was changed: {what} differs" in done.sentence


def test_a_predictor_that_runs_itself_again_without_its_environment_is_ended(
    bench: Bench, whole_run_s: float
) -> None:
    fault = "predict runs itself again"
    done = bench.run(FAULT=fault, **limits(initialisation_s=whole_run_s))
    assert done.code == 3
    assert f"found none (scoring took more than {whole_run_s:g} s)" in done.sentence
    bench.assert_settled()


def test_a_run_whose_predictor_was_killed_is_scored_by_the_next_command(bench: Bench) -> None:
    process = bench.start(FAULT="predict hangs")
    wait_until(lambda: find(bench.out, "ending.json") and bench.processes_left())
    trained = next(bench.out.rglob("log.txt")).read_bytes()
    wait_until(
        lambda: any(
            "hybridperf.run.rescore" in " ".join(p.cmdline()) for p in bench.processes_left()
        )
    )
    for predictor in bench.processes_left():
        os.kill(predictor.pid, signal.SIGKILL)

    done = finished(process)

    assert done.code == 4
    assert "was killed by SIGKILL; the weights are kept; give the same command again" in (
        done.sentence
    )
    assert bench.outcomes() == []
    assert find(bench.out, "weights")
    assert bench.run().code == 0
    bench.assert_settled()
    assert bench.outcomes() == ["success"]
    assert next(bench.out.rglob("result_0.txt")).read_bytes() == trained


def test_secrets_and_paths_in_an_exception_are_not_published(bench: Bench, victim: Path) -> None:
    done = bench.strike("tell secrets", VICTIM=str(victim))
    asked = bench.strike("tell secrets", "--publish-errors", VICTIM=str(victim))

    assert done.code == asked.code == 4
    assert str(victim) in done.sentence  # the user's own terminal
    type_only, with_text = (manifest["reason"] for manifest in bench.manifests())
    assert type_only == "the trainer failed: tests.trainers.faulty.faults.Boom"
    assert with_text == f"{type_only}: no file [removed] with [removed] [removed]"
    for number, reason in enumerate((type_only, with_text)):
        (log,) = bench.out.rglob(f"result_{number}.txt")
        (ending,) = read_log(log).all(keys.ENDING)
        assert ending.value == {"outcome": "crashed", "reason": reason}
        assert str(victim.parent) not in log.read_text()


@pytest.mark.parametrize("name", ["result_0.txt", "result_0.json", SUMS])
def test_nothing_is_sealed_beside_an_edited_result(bench: Bench, name: str) -> None:
    assert bench.run().code == 0
    (path,) = bench.out.rglob(name)
    path.write_text(path.read_text().replace("0", "1", 1))
    before = {each: each.read_bytes() for each in bench.out.rglob("*") if each.is_file()}

    done = bench.run(runs=2)

    assert done.code == 3
    assert "restore the sealed files, or choose another folder with --out" in done.sentence
    kept = {each: each.read_bytes() for each in before if each.name != ".lock"}
    assert kept == {each: text for each, text in before.items() if each.name != ".lock"}
    assert read_log(next(bench.out.rglob("result_0.txt"))).entries
    assert len(list(bench.out.rglob("result_*.txt"))) == 1


def test_a_sealed_run_that_a_later_one_edits_with_its_hash_is_noticed(bench: Bench) -> None:
    assert bench.run("--mode", "open").code == 0

    done = bench.strike("edit what is sealed", "--mode", "open", runs=2)

    assert done.code == 3
    assert "result_0.txt: expected the hash that it was sealed with" in done.sentence
    assert len(list(bench.out.rglob("result_*.txt"))) == 1


def test_a_result_says_that_it_was_made_outside_of_the_sandbox(bench: Bench) -> None:
    assert bench.run("--mode", "open").code == 0
    (manifest,) = bench.manifests()
    assert manifest["mode"] == "open"
    assert manifest["sandbox"] == {"kind": "none", "reason": "open mode was asked for"}
