"""The steps of the segments of a resumed run are all steps of the run, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.log import Entry
from hybridperf.log.package import read_result
from hybridperf.log.segments import last_checkpoint
from hybridperf.report.judgement import judged_entries
from hybridperf.rules.check import check_path
from hybridperf.score.ranking import standing_of, with_places
from tests.packages import edit_log, seal, write_result
from tests.rules.edits import WITHIN, resume

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package


def rules_broken(root: Path) -> set[str]:
    return {finding.rule for finding in check_path(root).findings}


def resumed(root: Path, **changes: Any) -> Package:
    package = write_result(root)
    edit_log(package, 2, lambda bodies: resume(bodies, **changes))
    seal(root)
    return package


def test_a_run_that_was_resumed_within_a_block_is_valid(tmp_path: Path) -> None:
    resumed(tmp_path)

    assert rules_broken(tmp_path) == set()


@pytest.mark.parametrize("progress", ["epoch_num", "samples_count"])
def test_a_checkpoint_of_an_evaluation_counts_once_the_evaluation_is_logged(progress: str) -> None:
    within = Entry(keys.CHECKPOINT, 0, "", {}, {"step": 10, "steps": 10}, 1)
    saved = Entry(keys.CHECKPOINT, 0, "", {}, {"step": 21, progress: 672}, 2)
    evaluated = Entry(keys.EVAL_ACCURACY, 0, "", 0.5, {progress: 672}, 3)

    assert last_checkpoint([within, saved]) == 10
    assert last_checkpoint([within, saved, evaluated]) == 21


@pytest.mark.parametrize(
    "changes",
    [
        {"first_step": WITHIN + 1},  # a batch skipped
        {"first_step": WITHIN - 1},  # a batch repeated
        {"steps": 3 * 1195 // 32 - WITHIN - 1},
        {"steps": 3 * 1195 // 32 - WITHIN + 1},
        {"counted": 9},
        {"saved": WITHIN + 1, "first_step": WITHIN + 1},
        {"plan": "dp=1"},  # BatchNorm
        {"plan": "dp=2,precision=bf16"},
        {"plan": "dp=2,gradients=bf16"},
        {"plan": "dp"},
    ],
    ids=str,
)
def test_steps_that_are_not_trained_once_break_a_rule(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    resumed(tmp_path, **changes)

    assert rules_broken(tmp_path) == {"run.segments"}


def test_a_result_that_changed_its_plan_is_ranked_among_its_like_only(tmp_path: Path) -> None:
    packages = [write_result(tmp_path, system="laptop", plan="dp=2,bn=sync")]
    for system in ("desk", "tower"):
        package = write_result(tmp_path, system=system, plan="dp=2,bn=sync")
        edit_log(package, 2, lambda bodies: resume(bodies, plan="dp=1"))
        packages.append(package)
    seal(tmp_path)
    usual, *changed = [entry.official for entry in judged_entries(packages)]
    assert [len(read_result(package).runs) for package in packages] == [5, 5, 5]

    alone, together = with_places([usual, changed[0]]), with_places([usual, *changed])

    assert standing_of(alone[0])[0] == standing_of(together[0])[0] == "ranked"
    why = "changed its plan: dp=2,bn=sync, then dp=1"
    assert standing_of(alone[1]) == ("provisional", why)
    assert [str(each.place) for each in alone] == ["1", "None"]
    assert [str(each.place) for each in together] == ["1", "1–2", "1–2"]  # noqa: RUF001 - as shown
    assert [standing_of(each)[0] for each in together] == ["ranked"] * 3
