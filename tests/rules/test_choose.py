from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.rules.targets import choose_ruleset
from tests.packages import write_result

if TYPE_CHECKING:
    from pathlib import Path

_LINE = ':::MLLOG {"key": "submission_benchmark", "time_ms": 1, "value": "bert", "metadata": {}}\n'


def _write(folder: Path, line: str = _LINE) -> Path:
    folder.mkdir(parents=True)
    log = folder / "result_0.txt"
    log.write_text(line)
    return log


@pytest.mark.parametrize("up", range(7))
def test_the_folder_of_a_round_names_its_ruleset(tmp_path: Path, up: int) -> None:
    log = _write(tmp_path / "training_results_v2.1" / "org" / "results" / "system" / "bert")

    assert choose_ruleset([log, *log.parents][up]) == "mlperf-training-2.1.0"


def test_what_is_ours_is_judged_by_our_rules(tmp_path: Path) -> None:
    write_result(tmp_path)

    assert choose_ruleset(tmp_path) == "hybridperf-1.0"
    assert choose_ruleset(tmp_path / "absent") == "hybridperf-1.0"


@pytest.mark.parametrize("line", [":::MLLOG {}\n", "", _LINE.replace("bert", "resnet/laptop")])
def test_what_is_of_nobody_is_judged_by_our_rules(tmp_path: Path, line: str) -> None:
    log = _write(tmp_path / "org" / "results" / "system" / "bert", line)

    assert choose_ruleset(log) == choose_ruleset(tmp_path) == "hybridperf-1.0"


def test_rounds_that_cannot_be_told_are_refused(tmp_path: Path) -> None:
    log = _write(tmp_path / "a" / "org" / "results" / "system" / "bert")
    for name in ("2.0", "2.1"):
        folder = tmp_path / "b" / f"training_results_v{name}" / "org" / "results" / "system"
        _write(folder / "bert")
    _write(tmp_path / "c" / "training_results_v9.9" / "org" / "results" / "system" / "bert")

    for path, found in (
        (log, "no folder training_results_v<round>"),
        (tmp_path / "a", "no folder training_results_v<round>"),
        (tmp_path / "c", "training_results_v9.9"),
    ):
        with pytest.raises(UserError, match="--ruleset") as refusal:
            choose_ruleset(path)
        assert refusal.value.exit_code is ExitCode.USAGE
        assert found in str(refusal.value)
