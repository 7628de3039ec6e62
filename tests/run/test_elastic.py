"""A run that loses a rank goes on from its last checkpoint in the same log, under the next plan."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
from safetensors.torch import load_file

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.tasks.registry import find_task
from tests.engine.compare import RELATIVE, assert_close
from tests.run.conftest import Bench, find, finished, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.log import Log
    from tests.run.command_server import Command

STARTER = "hybridperf.run.local_ranks"  #: forks ranks
EPOCH = 1195 // 32  #: steps of the first epoch


def log_of(bench: Bench) -> Log:
    (path,) = bench.out.rglob("result_0.txt")
    return read_log(path)


def segments(log: Log) -> list[tuple[object, ...]]:
    """Return first step, plan and loss of each further segment."""
    values = [entry.value for entry in log.all(keys.RESUMED) if isinstance(entry.value, dict)]
    return [(each["first_step"], each["plan"], each["lost"], each["why"]) for each in values]


def steps_that_count(log: Log) -> list[int]:
    """Return the steps that the final weights contain, as the log tells them, in order."""
    task, counted, first = find_task("resnet/laptop"), list[int](), 0
    for entry in log.entries:
        if entry.key == keys.RESUMED and isinstance(entry.value, dict):
            first = entry.value["first_step"]
            del counted[first:]
        elif entry.key == keys.CHECKPOINT and "steps" in entry.metadata:
            saved = entry.metadata["step"]
            assert isinstance(saved, int)
            counted += range(len(counted), saved)
        elif entry.key == keys.BLOCK_STOP and "steps" in entry.metadata:
            epoch, steps = entry.metadata["first_epoch_num"], entry.metadata["steps"]
            block = next(each for each in task.blocks() if each.first == epoch)
            begun = max(task.steps(block).start, first)
            assert isinstance(steps, int)
            counted += range(max(begun, len(counted)), begun + steps)
    return counted


def assert_went_on(bench: Bench, *expected: tuple[object, ...]) -> None:
    """The one attempt is complete, and every step of it counts once."""
    bench.assert_settled()
    assert bench.outcomes() == ["success"]
    assert bench.rules_broken() == set()
    log = log_of(bench)
    assert segments(log) == list(expected)
    last = log.all(keys.EVAL_ACCURACY)[-1].metadata["epoch_num"]
    blocks = {block.last: block for block in find_task("resnet/laptop").blocks()}
    assert isinstance(last, int)
    whole = find_task("resnet/laptop").steps(blocks[last]).stop
    assert steps_that_count(log) == list(range(whole))


@pytest.mark.parametrize(
    ("fault", "first_step"),
    [
        ("kill before the clock", 0),
        ("kill", EPOCH),
        ("kill in evaluation", EPOCH),
        ("kill in saving", 0),
    ],
)
def test_a_run_goes_on_after_a_rank_was_killed(bench: Bench, fault: str, first_step: int) -> None:
    done = bench.strike(fault, "--elastic", "dp=1")

    assert done.code == 0, done
    assert_went_on(bench, (first_step, "dp=1", "all ranks", "the trainer was killed by SIGKILL"))


def test_without_a_plan_left_the_loss_ends_the_run(bench: Bench) -> None:
    done = bench.run("--elastic", "dp=1;dp=1", FAULT="kill")

    assert done.code == 4
    assert bench.outcomes() == ["crashed"]
    assert [first for first, *_ in segments(log_of(bench))] == [EPOCH, EPOCH]
    bench.assert_settled()


def test_the_last_checkpoint_may_be_within_a_block(bench: Bench) -> None:
    done = bench.strike("kill", "--elastic", "dp=1", "--checkpoint-every", "0.000001")

    assert done.code == 0, done
    assert_went_on(bench, (EPOCH + 3, "dp=1", "all ranks", "the trainer was killed by SIGKILL"))


def test_fewer_replicas_go_on(bench: Bench) -> None:
    plan = ("--plan", "dp=2,bn=sync", "--elastic")

    done = bench.strike("kill", *plan, rank=1)

    assert done.code == 0, done
    assert f"  attempt 0: lost rank 1; goes on from step {EPOCH} under dp=1\n" in done.err
    assert_went_on(bench, (EPOCH, "dp=1", "rank 1", "rank 1 was killed by SIGKILL"))


@pytest.mark.parametrize("fault", ["kill, then skip", "kill, then repeat"])
def test_a_batch_skipped_or_repeated_at_a_resumption_breaks_a_rule(
    bench: Bench, fault: str
) -> None:
    bench.run("--elastic", "dp=1", FAULT=fault)

    assert bench.outcomes() == ["success"]
    assert bench.rules_broken() == {"run.segments"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--plan", "dp=2", "--elastic"), "BatchNorm over each of 1 replicas, not 2; add bn=sync"),
        (("--elastic",), "found one replica"),
        (("--elastic", "precision=bf16"), "precision=bf16"),
        (("--elastic", "pp=2,staleness=1"), "staleness"),
        (("--elastic", "dp=two"), "dp to be"),
        (("--plan", "pp=2,staleness=1", "--checkpoint-every", "1"), "staleness=1"),
    ],
)
def test_plans_that_compute_something_else_do_not_go_on(
    bench: Bench, options: tuple[str, ...], expected: str
) -> None:
    done = bench.run(*options)

    assert done.code == 2
    assert expected in done.sentence
    assert bench.orders() == []


def start_real(bench: Bench, plan: str, *options: str) -> Command:
    """Start a run of the reference trainer, always with the same seed, which misses its target."""
    return bench.start(
        *("--plan", plan, "--keep-weights", *options),
        trainer="hybridperf_reference",
        SEED="2718",
        OMP_NUM_THREADS="1",
    )


def ranks_of(bench: Bench) -> list[psutil.Process]:
    """Return the ranks that run: forks of the process that starts them."""
    found, parents = [], set[int]()
    for process in bench.processes_left():
        with contextlib.suppress(psutil.Error):  # it has ended
            parent = process.parent()
            if parent is not None and STARTER in parent.cmdline():
                found.append(process)
                parents.add(parent.pid)
    return [process for process in found if process.pid not in parents]


def weights(bench: Bench) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bench.out.rglob("weights_0_*.safetensors")}


#: how long an uninterrupted run took, and its weights, by plan, as far as tests asked for it
WHOLE_RUNS: dict[str, tuple[float, dict[str, bytes]]] = {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", range(20))
def test_a_rank_killed_at_any_instant_changes_no_weight(
    bench: Bench, tmp_path: Path, trial: int
) -> None:
    plan = ("dp=2,bn=sync", "dp=4,bn=sync")[trial % 2]
    bench.change_task(epochs=2, width=4)
    if plan not in WHOLE_RUNS:
        bench.out, out = tmp_path / "whole", bench.out
        start_s = time.monotonic()
        assert finished(start_real(bench, plan)).code == 1
        WHOLE_RUNS[plan], bench.out = (time.monotonic() - start_s, weights(bench)), out
    took_s, expected = WHOLE_RUNS[plan]
    chance = random.Random(trial)
    process = start_real(bench, plan, "--elastic", f"{plan};{plan}", "--checkpoint-every", "1")
    time.sleep(chance.uniform(0.1, 1.0) * took_s)
    wait_until(lambda: ranks_of(bench) or process.poll() is not None)
    for victim in chance.sample(ranks := ranks_of(bench), min(1, len(ranks))):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself at this instant
            victim.send_signal(signal.SIGKILL)

    done = finished(process)

    assert done.code == 1, done
    assert bench.outcomes() == ["target_missed"]
    assert bench.rules_broken() <= {"result.missed", "run.hyperparameters"}
    assert steps_that_count(log_of(bench)) == list(range(2 * 1195 // 32))
    assert weights(bench) == expected
    assert bench.processes_left() == []


@pytest.mark.exhaustive
def test_the_weights_follow_from_the_sequence_of_plans(bench: Bench, tmp_path: Path) -> None:
    bench.change_task(epochs=2, width=4)
    found = []
    for number, batches in enumerate((EPOCH + 16, EPOCH + 30)):  # in the second epoch
        bench.out = tmp_path / f"out_{number}"
        process = start_real(bench, "dp=2,bn=sync", "--elastic")
        bench.await_batches(batches)
        ranks_of(bench)[number].kill()
        assert finished(process).code == 1
        ((first_step, plan, lost, _),) = segments(log_of(bench))
        assert (first_step, plan) == (EPOCH, "dp=1")
        assert str(lost).startswith("rank ")
        found.append(weights(bench))

    assert found[0] == found[1] != {}


@pytest.mark.exhaustive
def test_a_run_that_changed_its_plan_computes_what_the_second_plan_does(
    bench: Bench, tmp_path: Path
) -> None:
    bench.change_task(epochs=2, width=4)
    bench.out, out = tmp_path / "whole", bench.out
    # Few and small steps, since training amplifies roundings: with the task's own, the weights of
    # whole runs of these two plans differ by tenths.
    small = ("--set", "training.global_batch_size=200", "--set", "optimizer.lr=0.00001")
    assert finished(start_real(bench, "dp=1", *small)).code == 1
    (expected,), bench.out = tensors(bench), out
    process = start_real(bench, "dp=2,bn=sync", *small, "--elastic", "dp=1")
    wait_until(lambda: find(bench.out, "step_5"))

    ranks_of(bench)[1].kill()

    assert finished(process).code == 1
    assert [plan for _, plan, *_ in segments(log_of(bench))] == ["dp=1"]
    (found,) = tensors(bench)
    assert_close("dp=2,bn=sync, then dp=1", found, expected, RELATIVE[torch.float32])


def tensors(bench: Bench) -> list[dict[str, torch.Tensor]]:
    """Return the final weights by name, one dictionary for each file."""
    return [load_file(path) for path in sorted(bench.out.rglob("weights_0_*.safetensors"))]
