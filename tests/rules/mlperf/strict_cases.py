"""Edits of a good log of BERT, each with the strict rule that finds it and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from tests.rules.mlperf.strict_logs import (
    Lines,
    drop,
    line,
    metadata,
    move,
    place,
    repeat,
    time,
    value,
    where,
    without_evaluations,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR, WARNING = Severity.ERROR, Severity.WARNING
HOUR_MS: Final = 3_600_000


def all_of(edits: list[Callable[[Lines], object]]) -> Callable[[Lines], object]:
    return lambda lines: [edit(lines) for edit in edits]


def insert(before: str, key: str, new: object = None) -> Callable[[Lines], object]:
    def edit(lines: Lines) -> None:
        index = place(lines, before)
        lines.insert(index, line(key, new) | {"time_ms": lines[index]["time_ms"]})

    return edit


def shift_from(key: str, by_ms: int) -> Callable[[Lines], object]:
    def edit(lines: Lines) -> None:
        for each in lines[place(lines, key) :]:
            each["time_ms"] += by_ms

    return edit


def everywhere(key: str, **fields: object) -> Callable[[Lines], object]:
    return lambda lines: [each.update(fields) for each in lines if each["key"] == key]


def points_of(*points: object) -> Callable[[Lines], object]:
    """Say how far training had come at each evaluation."""
    return all_of(
        [metadata("eval_accuracy", nth, epoch_num=point) for nth, point in enumerate(points)]
    )


OPEN = value("submission_division", "open")

CASES: Final[list[tuple[Callable[[Lines], object], str, Severity, str]]] = [
    (time("init_stop", -HOUR_MS), "mlperf.clock", ERROR, "init_stop after init_start by the"),
    (repeat("run_start"), "mlperf.one_run", ERROR, "expected run_start once, found 2 times"),
    (
        move("block_start", "init_stop"),
        "mlperf.timed",
        ERROR,
        "expected block_start after run_start, found the opposite",
    ),
    (
        move("run_stop", "eval_start"),
        "mlperf.timed",
        ERROR,
        "eval_accuracy before run_stop, found the opposite on 4 lines",
    ),
    (
        time("eval_accuracy", HOUR_MS, 3),
        "mlperf.timed",
        ERROR,
        "expected eval_accuracy before run_stop by the clock, found the opposite",
    ),
    (
        time("block_stop", HOUR_MS, 3),
        "mlperf.timed",
        WARNING,
        "expected block_stop before run_stop by the clock",
    ),
    (
        time("eval_start", -HOUR_MS),
        "mlperf.timed",
        ERROR,
        "expected eval_start after run_start by the clock",
    ),
    (
        shift_from("run_start", 5000),
        "mlperf.untimed",
        WARNING,
        "expected run_start within 1 s of init_stop, found 5.5 s",
    ),
    (
        shift_from("run_start", HOUR_MS // 2),
        "mlperf.untimed",
        ERROR,
        "expected run_start within 30 min of init_start, found 33.5 min",
    ),
    (
        all_of([OPEN, shift_from("run_start", HOUR_MS * 4)]),
        "mlperf.untimed",
        ERROR,
        "expected run_start within 240 min of init_start",
    ),
    (
        time("seed", -HOUR_MS),
        "mlperf.time",
        WARNING,
        "found 'seed' alone -3599.5 s off the lines around it",
    ),
    (value("cache_clear", False), "mlperf.cache", ERROR, "with the value true, found False"),
    (value("cache_clear", None), "mlperf.cache", WARNING, "with the value true, found None"),
    (value("cache_clear", 1), "mlperf.cache", ERROR, "with the value true, found 1"),
    (
        move("cache_clear", "init_stop"),
        "mlperf.cache",
        WARNING,
        "expected cache_clear before init_start, found after it",
    ),
    (
        move("cache_clear", "block_start"),
        "mlperf.cache",
        ERROR,
        "expected cache_clear before run_start, found after it",
    ),
    (
        shift_from("init_start", 5 * HOUR_MS),
        "mlperf.cache",
        WARNING,
        "cache_clear at most 30 min before init_start, found 300 min",
    ),
    (
        lambda lines: where(lines, "seed").update(event_type="POINT"),
        "mlperf.events",
        WARNING,
        "INTERVAL_START, INTERVAL_END, found 'POINT' and 0 more",
    ),
    (
        everywhere("block_start", metadata={"first_epoch_num": 1, "epoch_count": 2, "file": ""}),
        "mlperf.events",
        WARNING,
        "expected lineno in the metadata of every line, found none on 4 lines",
    ),
    (
        everywhere("eval_stop", event_type="INTERVAL_START"),
        "mlperf.edges",
        WARNING,
        "expected eval_stop as INTERVAL_END, found 'INTERVAL_START'",
    ),
    (
        drop("eval_stop", 1),
        "mlperf.intervals",
        WARNING,
        "expected eval_stop first, found block_stop",
    ),
    (
        drop("block_stop", 0, 1),
        "mlperf.intervals",
        WARNING,
        "expected block_stop before the next block_start, found none in 2 places",
    ),
    (drop("block_stop", 3), "mlperf.intervals", WARNING, "block_stop after block_start"),
    (drop("block_start", 2), "mlperf.intervals", WARNING, "block_start before block_stop"),
    (
        without_evaluations(1),
        "mlperf.cadence",
        ERROR,
        "to batches of 448, found 300,160 up to the one at 450,240, and 1 of 3 that differ",
    ),
    (without_evaluations(0, 1, 2), "mlperf.cadence", ERROR, "found 600,320 up to the one at"),
    (
        points_of(152_320, 302_400, 452_480, 602_560),
        "mlperf.cadence",
        WARNING,
        "found 152,320 up to the one at 152,320, and 1 of 4 that differ",
    ),
    (points_of(154_928, 305_008, 455_088, 605_168), "mlperf.cadence", WARNING, "found 154,928"),
    (points_of(155_600, 305_680, 455_760, 605_840), "mlperf.cadence", WARNING, "found 155,600"),
    (points_of(190_400, 380_800, 571_200, 761_600), "mlperf.cadence", ERROR, "found 190,400"),
    (points_of(50_176, 100_352, 150_528), "mlperf.cadence", WARNING, "found 50,176 up to the"),
    (
        all_of(
            [
                value("global_batch_size", 448 * 70),
                everywhere("global_batch_size", value=31360),
            ]
        ),
        "mlperf.cadence",
        WARNING,
        "expected an evaluation every 500,000 samples rounded up to batches of 31,360",
    ),
    (all_of([OPEN, without_evaluations(1)]), "mlperf.cadence", WARNING, "every 150,000 samples"),
    (points_of(-3), "mlperf.epochs", ERROR, "to be a whole number from 1, found -3 on 1 of 4"),
    (points_of("x"), "mlperf.epochs", ERROR, "to be a whole number from 1, found 'x'"),
    (points_of(150_080.5), "mlperf.epochs", ERROR, "number from 1, found 150080.5"),
    (points_of(True), "mlperf.epochs", ERROR, "number from 1, found True"),
    (
        metadata("block_start", first_epoch_num=0),
        "mlperf.epochs",
        WARNING,
        "first_epoch_num of block_start to be a whole number from 1, found 0 on 1 of 4 lines",
    ),
    (
        points_of(150_080, 300_160, 600_320, 450_240),
        "mlperf.epochs",
        ERROR,
        "expected epoch_num of evaluations to count up, found 450240 after 600320",
    ),
    (
        points_of(1, 1, 1, 1),
        "mlperf.epochs",
        WARNING,
        "expected epoch_num of eval_accuracy to count samples, found at most 1, with batches",
    ),
    (value("eval_accuracy", "0.3"), "mlperf.accuracy", ERROR, "from 0 to 1, found '0.3'"),
    (value("eval_accuracy", True), "mlperf.accuracy", ERROR, "from 0 to 1, found True"),
    (value("eval_accuracy", 72.1, 1), "mlperf.accuracy", ERROR, "from 0 to 1, found 72.1"),
    (
        all_of([OPEN, value("eval_accuracy", -1)]),
        "mlperf.accuracy",
        WARNING,
        "an accuracy from 0 to 1, found -1",
    ),
    (
        metadata("run_stop", status="aborted"),
        "mlperf.stop",
        ERROR,
        "expected status success, as the target was reached, found aborted, with 0.721",
    ),
    (metadata("run_stop", status=["?"]), "mlperf.stop", WARNING, "found ['?']"),
    (
        value("eval_accuracy", 0.73, 1),
        "mlperf.stop",
        WARNING,
        "stop at the first evaluation that reaches the target, found 2 more",
    ),
    (value("eval_samples", 9_999), "mlperf.thoroughness", ERROR, "at least 10,000, found 9999"),
    (value("eval_samples", [1]), "mlperf.thoroughness", ERROR, "at least 10,000, found [1]"),
    (value("train_samples", "x"), "mlperf.train_samples", ERROR, "at least 1, found 'x'"),
    (value("train_samples", 0), "mlperf.train_samples", ERROR, "at least 1, found 0"),
    (drop("seed"), "mlperf.seed", WARNING, "expected a seed, found none"),
    (value("seed", "a"), "mlperf.seed", WARNING, "a seed that is a whole number, found 'a'"),
    (insert("seed", "seed", 2), "mlperf.seed", WARNING, "expected one seed, found 2"),
    (
        value("gradient_accumulation_steps", 1.5),
        "mlperf.hyperparameters",
        ERROR,
        "gradient_accumulation_steps a whole number of at least 1, found 1.5",
    ),
    (
        value("opt_base_learning_rate", "x"),
        "mlperf.hyperparameters",
        ERROR,
        "expected opt_base_learning_rate a number, found 'x'",
    ),
    (value("opt_lamb_beta_1", True), "mlperf.hyperparameters", ERROR, "a number, found True"),
    (
        value("global_batch_size", None),
        "mlperf.hyperparameters",
        ERROR,
        "expected global_batch_size a whole number of at least 1, found None",
    ),
    (value("global_batch_size", 0), "mlperf.hyperparameters", ERROR, "at least 1, found 0"),
]
