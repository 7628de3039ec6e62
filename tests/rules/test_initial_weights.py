"""Given weights in a log: whose they are, and the quality that they had before the clock."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.rules.check import check_path
from hybridperf.rules.levels import trust_of
from hybridperf.rules.run_rules import initial_weights
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Initial
from tests.evidence import chain, describe_as_found, keep_models
from tests.packages import edit_log, edit_manifest, seal, write_result
from tests.rules.edits import begin_from_weights

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package

DIGEST = "ab" * 32
TASK = dataclasses.replace(
    find_task("resnet/laptop"),
    initial=Initial("model.safetensors", DIGEST, "torchvision", quality=0.34, tolerance=0.001),
)


def _state(
    package: Package, number: int, sha256: str = DIGEST, quality: object = 0.9, before: str = ""
) -> None:
    edit = partial(
        begin_from_weights, sha256=sha256, quality=quality, before=before or keys.INIT_STOP
    )
    edit_log(package, number, edit)
    edit_manifest(package, number, initial={"file": "model.safetensors", "sha256": sha256})
    seal(package.root)


@pytest.mark.parametrize(
    ("sha256", "quality", "before", "expected"),
    [
        (DIGEST, 0.3405, keys.INIT_STOP, ""),
        (DIGEST, 0.3405, keys.RUN_STOP, "hybridperf_initial before run_start"),
        (DIGEST, 0.35, keys.INIT_STOP, "a first quality of 0.34 +- 0.001"),
        (DIGEST, "0.34", keys.INIT_STOP, "a first quality of 0.34 +- 0.001"),
        ("cd" * 32, 0.34, keys.INIT_STOP, "weights abababababab... in the closed division"),
    ],
)
def test_given_weights_are_the_tasks(
    tmp_path: Path, sha256: str, quality: object, before: str, expected: str
) -> None:
    package = write_result(tmp_path)
    _state(package, 2, sha256, quality, before)
    runs = read_result(package).runs

    found = [each.expected for each in initial_weights(runs[2], TASK)]

    assert found == ([expected] if expected else [])
    (missing,) = initial_weights(runs[1], TASK)
    assert missing.expected == "an evaluation of weights abababababab... first"


def test_the_level_re_scored_requires_the_evaluation(tmp_path: Path) -> None:
    package = write_result(tmp_path)
    keep_models(package)
    describe_as_found(package)
    chain(package)

    trust = trust_of(read_result(package), TASK, [])
    assert trust.level == "chained"
    assert trust.lacks.startswith("re-scored requires an evaluation of the given weights before")
    assert trust_of(read_result(package), find_task("resnet/laptop"), []).level == "re-scored"


def test_runs_of_a_result_begin_from_the_weights_that_are_sealed(tmp_path: Path) -> None:
    package = write_result(tmp_path, division="open")
    for number in range(5):
        _state(package, number)
    edit_manifest(package, 2, initial={"file": "model.safetensors", "sha256": "cd" * 32})
    seal(tmp_path)

    findings = {finding.rule: finding for finding in check_path(tmp_path).findings}

    assert set(findings) == {"run.initial", "result.configuration"}
    assert findings["run.initial"].expected == "weights cdcdcdcdcdcd..., as sealed"
    assert findings["result.configuration"].expected.startswith("initial.sha256 = 'abab")


def test_only_open_runs_begin_from_other_weights(tmp_path: Path) -> None:
    for division in ("open", "closed"):
        package = write_result(tmp_path / division, division=division)
        for number in range(5):
            _state(package, number)

    assert check_path(tmp_path / "open").findings == ()
    verdict = check_path(tmp_path / "closed")
    assert {finding.rule for finding in verdict.findings} == {"run.initial"}
    assert verdict.findings[0].expected == "random weights in the closed division"
