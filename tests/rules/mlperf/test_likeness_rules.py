"""Runs made from other runs, and wrong stamps, are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridperf.log.package import Package, Result, SealedRun
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import check_result
from tests.rules.mlperf.strict_logs import RULESET, Lines, bert, findings_of, value, where, write


def _runs() -> list[Lines]:
    """Return ten runs of BERT, none of them like another."""
    runs = [bert() for _ in range(10)]
    for number, lines in enumerate(runs):
        value("seed", 1000 + number)(lines)
        for nth in range(4):
            evaluation = where(lines, "eval_accuracy", nth)
            evaluation["value"] = round(evaluation["value"] + number / 1000, 4)
            evaluation["time_ms"] += 7 * nth * nth + number * nth
        for each in lines:
            each["time_ms"] += number * 3_600_000
    return runs


def _twins(folder: Path, runs: list[Lines]) -> list[str]:
    sealed = tuple(
        SealedRun(number, read_published_log(write(folder / str(number), lines), str(number)), None)
        for number, lines in enumerate(runs)
    )
    package = Package(Path("/round"), "o", "s", "bert", Path("/round"))
    found = check_result(Result(package, sealed, None, "", ()), RULESET)
    return [f"{each.path}: {each.found}" for each in found if each.rule == "mlperf.twins"]


def test_runs_with_the_qualities_or_times_of_another_are_found(tmp_path: Path) -> None:
    runs = _runs()
    assert _twins(tmp_path, runs) == []

    for nth in range(4):
        value("eval_accuracy", where(runs[2], "eval_accuracy", nth)["value"], nth)(runs[7])
    assert _twins(tmp_path, runs) == ["7: 4 qualities in a row of run 2"]

    runs = [[*lines[:-1], *bert()[-6:]] for lines in _runs()]  # five evaluations
    for number, lines in enumerate(runs):
        for nth in range(5):
            like = 4 if number == 9 else number
            evaluation = where(lines, "eval_accuracy", nth)
            evaluation["time_ms"] = 1_650_000_000_000 + number + (nth + 1) ** 3 * (100 + like)
            evaluation["value"] = 0.1 * nth + number / 1000
    assert _twins(tmp_path, runs) == ["9: 4 times between evaluations in a row of run 4"]


def test_a_wrong_stamp_on_one_line_is_named(tmp_path: Path) -> None:
    for off_ms in (60_000, -60_000):
        lines = bert()
        wrong = where(lines, "weights_initialization", 50)
        wrong["time_ms"] += off_ms

        (finding,) = findings_of(tmp_path / "log", lines)

        assert (finding.rule, finding.line) == ("mlperf.time", lines.index(wrong) + 1)
        assert f"alone {off_ms / 1000:+.0f}"[:7] in finding.found


@pytest.mark.parametrize("batch", [10**30, 10**400, 448.5, True, float("inf")])
def test_batch_sizes_that_none_has_are_found(tmp_path: Path, batch: float) -> None:
    lines = bert()
    value("global_batch_size", batch)(lines)

    rules = {each.rule for each in findings_of(tmp_path / "log", lines)}

    assert "mlperf.hyperparameters" in rules
