"""Ranks that die, hang, stop, raise or take too long, several of them where that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.report.judgement import read_entries
from tests.run.conftest import limits

if TYPE_CHECKING:
    from tests.run.conftest import Bench

SILENT = "no rank made progress for {:g} s: rank 1 stopped first, at batch 42"


@pytest.mark.parametrize(
    ("fault", "rank", "outcome", "reason"),
    [
        ("kill", 0, "crashed", "rank 0 was killed by SIGKILL"),
        ("kill", 1, "crashed", "rank 1 was killed by SIGKILL"),
        (
            "raise",
            1,
            "crashed",
            "rank 1 failed: tests.trainers.faulty.faults.Boom: the loss is not a number",
        ),
        (
            "hang",
            1,
            "silent",
            SILENT,
        ),
    ],
)
def test_one_of_two_ranks_fails_and_all_end_together(
    bench: Bench, whole_run_s: float, fault: str, rank: int, outcome: str, reason: str
) -> None:
    silence_s = 2 * whole_run_s
    silence = limits(silence_s=silence_s) if outcome == "silent" else {}
    reason = reason.format(silence_s)
    done = bench.strike(fault, "--plan", "dp=2", rank=rank, **silence)
    assert done.code == 4
    assert f"is sealed as {outcome}: {reason}; the output of the ranks is in " in done.sentence
    bench.assert_settled()
    published = reason.removesuffix(": the loss is not a number")  # of an exception its type
    assert [(m["outcome"], m["reason"]) for m in bench.manifests()] == [(outcome, published)]
    bench.assert_goes_on("--plan", "dp=2")


@pytest.mark.parametrize(
    ("fault", "limits_s", "outcome", "reason"),
    [
        ("init", {"initialisation_s": 1}, "over_budget", "initialisation took more than 1 s"),
        ("slow", {"run_s": 0.6}, "over_budget", "training took more than 0.6 s"),
        ("linger", {"ending_s": 0.5}, "over_budget", "ending took more than 0.5 s"),
        (
            "hang",
            {"silence_s": None},
            "silent",
            "no rank made progress for {:g} s, since batch 42",
        ),
        ("leave", {}, "crashed", "the trainer ended before its run did"),
        (
            "other block",
            {},
            "crashed",
            "the trainer failed: hybridperf.run.timed_run.OutOfTurnError: training data",
        ),
        (
            "evaluation first",
            {},
            "crashed",
            "the trainer failed: hybridperf.run.timed_run.OutOfTurnError: report()",
        ),
    ],
)
def test_a_run_that_cannot_go_on_is_ended_and_counted(
    bench: Bench,
    whole_run_s: float,
    fault: str,
    limits_s: dict[str, float | None],
    outcome: str,
    reason: str,
) -> None:
    chosen = {key: value or whole_run_s for key, value in limits_s.items()}
    reason = reason.format(whole_run_s)
    done = bench.strike(fault, **limits(**chosen))
    assert done.code == 4
    assert f"is sealed as {outcome}: {reason}" in done.sentence
    bench.assert_settled()
    assert bench.outcomes() == [outcome]
    if outcome == "over_budget":
        bench.assert_goes_on()


@pytest.mark.parametrize(
    ("fault", "rank", "reason"),
    [
        ("typo", 0, "the trainer failed: AttributeError: 'Memory' object has no attribute 'image'"),
        ("typo", 1, "rank 1 failed: AttributeError: 'Memory' object has no attribute 'image'"),
        (
            "early",
            0,
            "the trainer failed: hybridperf.run.timed_run.OutOfTurnError: training data",
        ),
    ],
)
def test_a_trainer_that_fails_before_the_clock_has_made_no_attempt(
    bench: Bench, fault: str, rank: int, reason: str
) -> None:
    plan = ("--plan", f"dp={rank + 1}")
    done = bench.strike(fault, *plan, rank=rank)
    assert done.code == 4
    (secret,) = bench.out.rglob(".seeds.json")
    what = "ended before its clock started, and does not count"
    assert f"attempt 0 in {secret.parent} {what}: {reason}" in done.sentence
    printed = secret.parent / ".output_0.txt"
    assert f"; the output of the ranks is in {printed}; " in done.sentence
    assert "Traceback" in printed.read_text()
    bench.assert_settled()
    assert bench.outcomes() == []
    seeds = secret.read_text()

    mended = bench.run(*plan)

    assert mended.code == 0
    assert "ended early" not in mended.out
    assert bench.outcomes() == ["success"]
    assert bench.rules_broken() == set()
    assert secret.read_text() == seeds
    (result,) = bench.out.rglob("result_0.txt")
    stated = read_log(result).value(keys.ATTEMPT)
    assert isinstance(stated, dict)
    assert (stated["number"], stated["position"]) == (0, 1), "its seed was kept"


@pytest.mark.parametrize(
    ("fault", "limits_s", "reason"),
    [
        ("claim", {}, "0.9668 (the quality did not come back)"),
        (
            "predict raises",
            {},
            "none (the trainer failed: tests.trainers.faulty.faults.Boom: no such layer)",
        ),
        ("predict hangs", {"initialisation_s": None}, "none (scoring took more than {:g} s)"),
        ("predict answers nothing", {}, "none (no predictions: "),
        ("predict answers an empty file", {}, "none (no predictions: "),
        ("predict answers too few", {}, "none (predictions of shape (601,)"),
        (
            "predict answers words",
            {},
            "none (no predictions: elements of type <U21",
        ),
    ],
)
def test_a_quality_that_does_not_come_back_does_not_count(
    bench: Bench, whole_run_s: float, fault: str, limits_s: dict[str, None], reason: str
) -> None:
    chosen = limits(**dict.fromkeys(limits_s, whole_run_s))
    reason = reason.format(whole_run_s)
    # Where the predictor's process has the fault, the training before it is honest.
    done = bench.strike(fault) if fault == "claim" else bench.run(FAULT=fault, **chosen)
    assert done.code == 3
    assert "result_0.txt: expected the reported quality " in done.sentence
    assert f"found {reason}" in done.sentence
    bench.assert_settled()
    assert bench.outcomes() == ["refused"]
    if fault == "claim":
        bench.assert_goes_on()


def test_a_trainer_that_never_reaches_the_target_ends_at_the_last_epoch(bench: Bench) -> None:
    bench.change_task(epochs=3)
    done = bench.strike("never")
    assert done.code == 1
    assert done.err.startswith("  attempt 0: missed the target in ")
    bench.assert_settled()
    assert bench.outcomes() == ["target_missed"]
    assert bench.run().code == 1  # complete: nothing runs again


def test_a_schedule_in_samples_is_logged_judged_and_scored_in_samples(bench: Bench) -> None:
    path = bench.tasks / "resnet/laptop.toml"
    epochs = "first_epoch = 1\nevery_epochs = 1\n"
    path.write_text(path.read_text().replace(epochs, "every_samples = 700\n"))
    bench.change_task(epochs=2)

    assert bench.strike("never").code == 1

    bench.assert_settled()
    assert not {rule for rule in bench.rules_broken() if rule.startswith("run.")}
    ((log_path, entry),) = zip(
        bench.out.rglob("result_0.txt"), read_entries(bench.out), strict=True
    )
    log, (run,) = read_log(log_path), entry.score.runs
    ends = [672, 1376, 2080]
    starts = [each.metadata["samples_count"] for each in log.all(keys.BLOCK_START)]
    assert starts == [0, *ends[:-1]]
    assert [each.metadata["samples_count"] for each in log.all(keys.EVAL_ACCURACY)] == ends
    assert [each.metadata["samples"] for each in log.all(keys.BLOCK_STOP)] == [672, 704, 704]
    assert [(point.epoch, point.samples) for point in run.curve] == [(None, end) for end in ends]
    assert run.steady_samples_per_s


def test_the_wall_clock_may_be_set_back_during_a_run(bench: Bench) -> None:
    assert bench.strike("wall clock").code == 0
    bench.assert_settled()
    assert bench.rules_broken() == set()
