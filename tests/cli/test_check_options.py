"""The options of ``hybridperf check``: ruleset, mode and format."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from tests.packages import change, edit_log, log_path, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished

MLPERF = ("--ruleset", "mlperf-training-2.1.0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--ruleset", "mlperf-9"],
            "mlperf-training-6.1.0, or the file of one, found 'mlperf-9'; name one with --ruleset.",
        ),
        (["--ruleset", "../x"], "found '../x'; name one with --ruleset."),
        (
            ["--mode", "as-published"],
            "expected --mode strict with ruleset hybridperf-1.0, found as-published; choose",
        ),
        (["--mode", "lax"], "invalid choice: 'lax'"),
        (["--format", "yaml"], "invalid choice: 'yaml'"),
        (["--explain", "log.kyes"], "found 'log.kyes'; did you mean log.keys"),
        (["--explain", "log.keys", "--rules"], "not allowed with argument --explain"),
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
    assert set(said) == {
        "version", "valid", "ruleset", "mode", "counts", "results", "logs", "findings",
    }  # fmt: skip
    assert (said["valid"], said["ruleset"], said["mode"]) == (False, MLPERF[1], "as-published")
    assert said["logs"] == [{"path": str(log), "valid": False, "verdict": "invalid"}]
    assert said["counts"]["logs"] == {"valid": 0, "invalid": 1, "not judged": 0}
    assert said["counts"]["findings"]["error"] == len(said["findings"])
    assert {"rule", "severity", "path", "line", "expected", "found", "remedy"} == set(
        said["findings"][0]
    )
    assert said["findings"][0]["rule"] == "mlperf.line"
    assert hybridperf("check", str(log), *MLPERF, "--json").out == done.out
    text = hybridperf("check", str(log), *MLPERF)
    assert text.code == 3
    assert f"{log}: INVALID by mlperf-training-2.1.0, 1 log checked" in text.out
    assert text.out.count("error ") == len({each["rule"] for each in said["findings"]})
    keys_missing = sum(each["rule"] == "mlperf.keys" for each in said["findings"])
    assert f"{keys_missing - 1} more of mlperf.keys, in 1 file; --verbose shows all" in text.out
    verbose = hybridperf("check", str(log), *MLPERF, "--verbose").out
    assert verbose.count("error ") == len(said["findings"])


def test_no_path_is_refused(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("check")

    assert done.code == 2
    assert "found none; name its path, or see 'hybridperf check --help'." in done.sentence


def test_junit_says_the_same(hybridperf: Callable[..., Finished], tmp_path: Path) -> None:
    valid = write_result(tmp_path / "valid")
    broken = write_result(tmp_path / "broken", times_s=[10.0, 11.0])
    edit_log(broken, 1, lambda bodies: change(bodies, keys.RUN_STOP, value="\x1b[31m", time_ms=5))

    good = hybridperf("check", str(log_path(valid, 0)), "--format", "junit")
    bad = hybridperf("check", str(broken.folder), "--format", "junit")

    assert (good.code, bad.code) == (0, 3)
    assert ET.fromstring(good.out).get("failures") == "0"
    folder = "acme/results/laptop/resnet-laptop"
    cases = {
        case.get("name"): case.find("failure")
        for case in ET.fromstring(bad.out).iter("testcase")
        if case.get("classname") == folder
    }
    assert set(cases) == {"result_0.txt", "result_1.txt", "as a whole"}
    assert cases["result_0.txt"] is None
    assert "log.time" in str(cases["result_1.txt"].text)  # type: ignore[union-attr]  # would fail
    assert cases["as a whole"].get("type") == "result.run_count"  # type: ignore[union-attr]  # as above


def test_the_rules_are_listed_with_their_sources(hybridperf: Callable[..., Finished]) -> None:
    ours = json.loads(hybridperf("check", "--rules", "--json").out)
    text = hybridperf("check", "--rules").out
    published = json.loads(
        hybridperf("check", "--rules", *MLPERF, "--mode", "as-published", "--json").out
    )
    strict = json.loads(hybridperf("check", "--rules", *MLPERF, "--format", "json").out)

    assert all(rule["rule"] in text and rule["source"] in text for rule in ours)
    assert {rule["mode"] for rule in ours} == {"strict"}
    assert {"log.file", "mlperf.line", "mlperf.keys"} <= {rule["rule"] for rule in published}
    assert {rule["mode"] for rule in published} == {"as-published"}
    assert published == [rule for rule in strict if rule["mode"] == "as-published"] != strict


def test_a_rule_is_explained(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("check", "--explain", "log.initialisation")
    said = json.loads(hybridperf("check", "--explain", "log.initialisation", "--json").out)

    assert done.code == 0
    assert "log.initialisation: error, in ruleset hybridperf-1.0, mode strict" in done.out
    assert all(f"{said[name]}\n" in done.out for name in ("checks", "source", "remedy"))
    assert "with most_gap_s = 1.0" in done.out
