"""Evaluations that take no time, rates that a run's own statistics contradict, spliced logs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.findings import Severity
from hybridperf.log.package import Package, Result, SealedRun, find_packages, read_package
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import check_result, check_run
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.rules.mlperf.published_rounds import published_rounds
from tests.rules.mlperf.strict_logs import (
    RULESET,
    Lines,
    bert,
    findings_of,
    line,
    read_lines,
    resnet,
    value,
    where,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hybridperf.findings import Finding

ERROR, WARNING = Severity.ERROR, Severity.WARNING
RESNET = "v3.0/Dell/results/XE9680x8H100-SXM-80GB/resnet"
LORA = "v5.0/Dell/results/XE7740x8H200-NVL-141GB/llama2_70b_lora"
BERT_WITHOUT = "v2.1/NVIDIA/results/dgxa100_ngc22.09_pytorch/bert"  #: starts of evaluations
BERT = "v4.1/NVIDIA/results/h200_ngc23.09_pytorch/bert"


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with published_rounds(tmp_path_factory) as folder:
        yield folder


def _edited(
    rounds: Path, result: str, folder: Path, edit: Callable[[list[Lines]], object]
) -> list[tuple[str, str, Severity]]:
    """Return rule, log and severity of what strict mode finds in a published result, edited."""
    source = rounds / f"training_results_{result}"
    paths = sorted(source.glob("result_*.txt"))
    logs = [read_lines(path) for path in paths]
    edit(logs)
    # In a folder of the same name, so that the ruleset fits.
    target = folder / source.relative_to(rounds)
    target.mkdir(parents=True)
    for path, lines in zip(paths, logs, strict=True):
        write(target / path.name, lines)
    (package,) = find_packages(target)
    edition = result.partition("/")[0].removeprefix("v")
    found = check_result(read_package(package), f"mlperf-training-{edition}.0")
    return [
        (each.rule, each.path.rpartition("/")[2], each.severity)
        for each in found
        if each.rule.startswith("mlperf.")
    ]


def _nothing(logs: list[Lines]) -> None:
    assert logs


def _new(
    rounds: Path, result: str, folder: Path, edit: Callable[[list[Lines]], object]
) -> set[tuple[str, str, Severity]]:
    """Return what is found only in the edited result."""
    before = _edited(rounds, result, folder / "before", _nothing)
    return set(_edited(rounds, result, folder / "after", edit)) - set(before)


def _places(lines: Lines, key: str) -> list[int]:
    return [at for at, each in enumerate(lines) if each["key"] == key]


def _cut_out(lines: Lines, nth: int, left_ms: int) -> None:
    """Cut the time of an evaluation out of a log, but for ``left_ms``."""
    start, stop = _places(lines, "eval_start")[nth], _places(lines, "eval_stop")[nth]
    took_ms = lines[stop]["time_ms"] - lines[start]["time_ms"] - left_ms
    assert took_ms > 0
    for each in lines[start + 1 :]:
        each["time_ms"] = max(each["time_ms"] - took_ms, lines[start]["time_ms"])


@pytest.mark.parametrize("result", [RESNET, LORA, BERT])
@pytest.mark.parametrize("left_ms", [0, 1])
def test_an_evaluation_that_was_cut_out_is_found(
    rounds: Path, tmp_path: Path, result: str, left_ms: int
) -> None:
    found = _new(rounds, result, tmp_path, lambda logs: _cut_out(logs[2], 1, left_ms))

    assert ("mlperf.evaluation_time", "result_2.txt", ERROR) in found
    assert {log for _, log, severity in found if severity is ERROR} == {"result_2.txt"}


def test_a_run_whose_evaluations_were_all_cut_did_not_evaluate(
    rounds: Path, tmp_path: Path
) -> None:
    def cut(logs: list[Lines]) -> None:
        for nth in range(len(_places(logs[1], "eval_start"))):
            _cut_out(logs[1], nth, 20)

    found = _new(rounds, RESNET, tmp_path, cut)

    assert ("mlperf.evaluation_time", "result_1.txt", ERROR) in found


@pytest.mark.parametrize(("share", "severity"), [(0.1, ERROR), (0.4, WARNING), (0.6, None)])
def test_a_part_of_the_training_that_was_cut_out_is_found(
    rounds: Path, tmp_path: Path, share: float, severity: Severity | None
) -> None:
    def cut(logs: list[Lines]) -> None:
        before, after = _places(logs[4], "eval_accuracy")[2:4]
        start_ms = logs[4][before]["time_ms"]
        cut_ms = int((logs[4][after]["time_ms"] - start_ms) * (1 - share))
        for each in logs[4][before + 1 :]:
            each["time_ms"] = max(each["time_ms"] - cut_ms, start_ms)

    found = _new(rounds, BERT_WITHOUT, tmp_path, cut)

    named = {level for rule, _, level in found if rule == "mlperf.training_time"}
    assert named == ({severity} if severity else set())
    assert {log for rule, log, _ in found if rule == "mlperf.training_time"} <= {"result_4.txt"}


def _squeezed(lines: Lines, share: float) -> None:
    start_ms = where(lines, "run_start")["time_ms"]
    for each in lines:
        if each["time_ms"] > start_ms:
            each["time_ms"] = start_ms + int((each["time_ms"] - start_ms) * share)


@pytest.mark.parametrize(("result", "share"), [(RESNET, 0.85), (BERT, 0.85), (LORA, 0.75)])
def test_a_log_that_was_made_faster_contradicts_its_own_statistics(
    rounds: Path, tmp_path: Path, result: str, share: float
) -> None:
    found = _new(rounds, result, tmp_path, lambda logs: _squeezed(logs[0], share))

    assert ("mlperf.rates", "result_0.txt", ERROR) in found


@pytest.mark.parametrize("share", [0.5, 0.05, 0.001])
def test_a_log_that_was_made_much_faster_is_no_other_unit(
    rounds: Path, tmp_path: Path, share: float
) -> None:
    found = _new(rounds, LORA, tmp_path, lambda logs: _squeezed(logs[0], share))

    assert ("mlperf.rates", "result_0.txt", ERROR) in found


def test_parts_of_runs_may_take_the_same_few_times(tmp_path: Path) -> None:
    """A device that evaluates in 4 to 7 ms has many times in a row that are equal by chance."""
    chosen = random.Random(3)
    runs = []
    for number in range(5):
        lines = resnet()
        value("seed", 1000 + number)(lines)
        stop = lines.pop()
        for nth in range(30):
            stamp = lines[-1]["time_ms"] + chosen.choice((4, 5, 6, 7))
            point = {"value": chosen.random(), "time_ms": stamp}
            lines.append({**line("eval_accuracy", epoch_num=15 + 4 * nth), **point})
        runs.append([*lines, {**stop, "time_ms": lines[-1]["time_ms"]}])
    sealed = tuple(
        SealedRun(number, read_published_log(write(tmp_path / str(number), lines), ""), None)
        for number, lines in enumerate(runs)
    )
    package = Package(tmp_path, "o", "s", "resnet", tmp_path)

    found = check_result(Result(package, sealed, None, "", ()), RULESET)

    assert "mlperf.twins" not in {each.rule for each in found}


def _spliced(head: Lines, tail: Lines, key: str) -> Lines:
    """Return the beginning of a run and the end of another, by one clock."""
    middle = len(_places(head, key)) // 2 - 1
    cut, start = _places(head, key)[middle], _places(tail, key)[middle]
    by_ms = head[cut]["time_ms"] - tail[start]["time_ms"]
    moved = [{**each, "time_ms": each["time_ms"] + by_ms} for each in tail[start:]]
    return [*head[:cut], *moved]


@pytest.mark.parametrize("result", [RESNET, LORA, BERT])
def test_a_log_spliced_of_two_others_is_found(rounds: Path, tmp_path: Path, result: str) -> None:
    def splice(logs: list[Lines]) -> None:
        assert len(logs) > 3
        logs[3] = _spliced(logs[0], logs[1], "eval_accuracy")

    found = _new(rounds, result, tmp_path, splice)

    assert ("mlperf.twins", "result_3.txt", ERROR) in found


def _paced(points: int, eval_ms: Callable[[int], int]) -> Lines:
    lines = bert()
    stop = lines.pop()
    time_ms = lines[-1]["time_ms"]
    for nth in range(points):
        point = 600_320 + 150_080 * (nth + 1)
        for key, after_ms in (("block_start", 0), ("eval_start", 4000), ("eval_stop", 0)):
            time_ms += eval_ms(nth) if key == "eval_stop" else after_ms
            lines.append({**line(key, epoch_num=point, first_epoch_num=1), "time_ms": time_ms})
    return [*lines, {**stop, "time_ms": time_ms + 500}]


def _rules(found: list[Finding]) -> list[tuple[str, Severity]]:
    return [(each.rule, each.severity) for each in found if each.rule == "mlperf.evaluation_time"]


@pytest.mark.parametrize(
    ("shortest_ms", "usual_ms", "severity"),
    [
        (0, 1000, ERROR),
        (-5, 1000, ERROR),
        (20, 1000, ERROR),
        (150, 1000, WARNING),
        (250, 1000, None),
        (0, 60, ERROR),
        (0, 0, ERROR),
        (8, 31, None),
    ],
)
def test_how_short_an_evaluation_may_be(
    tmp_path: Path, shortest_ms: int, usual_ms: int, severity: Severity | None
) -> None:
    lines = _paced(20, lambda nth: shortest_ms if nth == 3 else usual_ms)

    expected = [] if severity is None else [("mlperf.evaluation_time", severity)]
    assert _rules(findings_of(tmp_path / "log", lines)) == expected


def test_checkpoints_that_are_evaluated_later_may_take_no_time(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        line("submission_benchmark", "stable_diffusion"),
        line("eval_start"),
        line("eval_stop"),
    ]
    log = read_published_log(write(tmp_path / "log", lines), "log")

    found = list(check_run(SealedRun(0, log, None), load_ruleset("mlperf-training-5.0.0")))

    assert _rules(found) == []


def test_rates_of_any_kind_are_no_traceback(tmp_path: Path) -> None:
    odd = list[Any]((None, True, "x", [], {}, 0, -1, 1e300, 10**400, {"throughput": 1}))
    chosen = random.Random(7)
    for _ in range(50):
        lines = bert()
        for _ in range(3):
            stats: object = {chosen.choice(("throughput", "imgs_sec")): chosen.choice(odd)}
            stats = chosen.choice([stats, stats, chosen.choice(odd)])
            lines.insert(-1, {**lines[-1], **line("tracked_stats", stats)})

        run = SealedRun(0, read_published_log(write(tmp_path / "log", lines), "log"), None)
        package = Package(tmp_path, "o", "s", "bert", tmp_path)
        for each in check_result(Result(package, (run,), None, "", ()), RULESET):
            assert each.sentence.isprintable()
