"""The options of ``hybridperf check``: ruleset, mode and format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.runs.conftest import Finished

MLPERF = ("--ruleset", "mlperf-training-2.1.0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--ruleset", "mlperf-9"],
            "mlperf-training-2.1.0, found 'mlperf-9'; name one with --ruleset.",
        ),
        (["--ruleset", "../x"], "found '../x'; name one with --ruleset."),
        (
            ["--mode", "as-published"],
            "expected --mode strict with ruleset hybridperf-1.0, found as-published; choose",
        ),
        ([*MLPERF, "--mode", "strict"], "expected --mode as-published with ruleset mlperf"),
        (["--mode", "lax"], "invalid choice: 'lax'"),
        (["--format", "yaml"], "invalid choice: 'yaml'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = hybridperf("check", str(tmp_path), *arguments)

    assert done.code == 2
    assert sentence in done.sentence


def test_where_nothing_can_be_read_the_status_is_4(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    assert hybridperf("check", str(tmp_path), *MLPERF).code == 4
    assert hybridperf("check", str(tmp_path / "none"), *MLPERF).code == 4


def test_json_keeps_its_contract_and_text_says_the_same(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(":::MLLOG {}\n")

    done = hybridperf("check", str(log), *MLPERF, "--mode", "as-published", "--format", "json")

    said = json.loads(done.out)
    assert done.code == 3
    assert set(said) == {"valid", "ruleset", "mode", "logs", "findings"}
    assert (said["valid"], said["ruleset"], said["mode"]) == (False, MLPERF[1], "as-published")
    assert said["logs"] == [{"path": str(log), "valid": False}]
    assert {"rule", "severity", "path", "line", "expected", "found", "remedy"} == set(
        said["findings"][0]
    )
    assert said["findings"][0]["rule"] == "mlperf.line"
    assert hybridperf("check", str(log), *MLPERF, "--json").out == done.out
    text = hybridperf("check", str(log), *MLPERF)
    assert text.code == 3
    assert f"{log}: INVALID by mlperf-training-2.1.0, 1 log checked" in text.out
    assert text.out.count("\nerror ") == len(said["findings"]) - 1
