"""``hybridperf check`` of rounds: what is said of results, several paths, and rulesets that fit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.rules.mlperf.strict_logs import read_lines, resnet, value, where, write
from tests.rules.round_folder import RESULT, SYSTEM_FILE, description, write_submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished


def _result(folder: Path, name: str, wrong: int = 0, runs: int = 5, folder_name: str = "") -> Path:
    """Write a result of ResNet in which the first ``wrong`` runs miss the target."""
    result = (
        folder / "training_results_v2.1" / "acme" / "results" / name / (folder_name or "resnet")
    )
    result.mkdir(parents=True)
    for number in range(runs):
        lines = resnet()
        if number < wrong:
            value("eval_accuracy", 0.5, 2)(lines)
        if folder_name:
            value("submission_benchmark", folder_name)(lines)
        write(result / f"result_{number}.txt", lines)
    return result


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """A round with a result of each kind."""
    _result(tmp_path, "good")
    _result(tmp_path, "slow", wrong=1)
    _result(tmp_path, "bad", wrong=2)
    _result(tmp_path, "short", runs=4)
    _result(tmp_path, "other", folder_name="gnn")
    return tmp_path / "training_results_v2.1"


def test_results_are_counted_as_the_rules_count_them(
    hybridperf: Callable[..., Finished], round_: Path
) -> None:
    done = hybridperf("check", str(round_), "--json")
    said = json.loads(done.out)

    assert done.code == 3
    counts = {word: count for word, count in said["counts"]["results"].items() if count}
    assert counts == {"valid": 2, "did not converge": 1, "provisional": 1, "not judged": 1}
    assert said["counts"]["logs"] == {"valid": 16, "invalid": 3, "not judged": 5}
    verdicts = {each["system"]: (each["judgement"], each["why"]) for each in said["results"]}
    assert verdicts["good"] == ("valid", "")
    assert verdicts["slow"][0] == "valid"
    assert verdicts["slow"][1].startswith("1 run counted as slowest: result_0.txt: mlperf.target")
    assert verdicts["bad"][0] == "did not converge"
    assert verdicts["bad"][1].startswith("2 of 5 logs invalid, at most 1 may be: result_0.txt")
    assert verdicts["short"] == ("provisional", "4 of 5 runs")
    assert verdicts["other"] == ("not judged", "no rules for gnn")
    unjudged = [each["valid"] for each in said["logs"] if "/other/" in each["path"]]
    assert unjudged == [None] * 5
    assert not [each for each in said["findings"] if "/other/" in each["path"]]


@pytest.mark.parametrize(
    ("names", "code"),
    [("good", 0), ("slow", 0), ("bad", 3), ("short", 3), ("good slow", 0), ("good bad", 3)],
)
def test_the_exit_status_is_by_results(
    hybridperf: Callable[..., Finished], round_: Path, names: str, code: int
) -> None:
    paths = [str(round_ / "acme" / "results" / name) for name in names.split()]

    assert hybridperf("check", *paths).code == code


def test_the_first_screen_says_it_all(
    hybridperf: Callable[..., Finished], round_: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    lines = hybridperf("check", str(round_)).out.splitlines()

    assert lines[0] == "judged by mlperf-training-2.1.0, as the checker of the round"
    assert lines[1].strip() == "5 results: 2 valid, 1 did not converge, 1 provisional, 1 not judged"
    assert lines[2].strip() == "24 logs: 16 valid, 5 not judged, 3 INVALID"
    assert sum(line.startswith("error mlperf.target") for line in lines) == 1
    assert "    2 more of mlperf.target, in 3 files; --verbose shows all" in lines
    words = [line.split()[0] for line in lines if "acme/results" in line and "log" in line]
    assert [each for each in words if each in {"did", "not", "provisional", "valid"}] == [
        "not", "provisional", "did", "valid", "valid",
    ]  # fmt: skip
    path = str(round_)
    assert [line for line in lines if len(line) > 80 and path not in line] == []


def test_several_rounds_and_patterns_are_judged_each_by_its_ruleset(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _result(tmp_path, "one")
    (tmp_path / "training_results_v2.1").rename(tmp_path / "training_results_v2.0")
    _result(tmp_path, "one")

    for paths in ([tmp_path], [tmp_path / "training_results_v2.*"]):
        done = hybridperf("check", *map(str, paths), "--json")
        said = json.loads(done.out)

        assert done.code == 0
        assert [(each["path"], each["ruleset"]) for each in said["results"]] == [
            (f"training_results_v2.{n}/acme/results/one/resnet", f"mlperf-training-2.{n}.0")
            for n in (0, 1)
        ]


def test_a_ruleset_that_does_not_fit_is_warned_of_or_refused(
    hybridperf: Callable[..., Finished], round_: Path
) -> None:
    good = str(round_ / "acme" / "results" / "good")

    other = hybridperf("check", good, "--ruleset", "mlperf-training-1.0.0")
    none = hybridperf("check", good, "--ruleset", "mlperf-training-5.1.0")
    ours = hybridperf("check", good, "--ruleset", "hybridperf-1.0")

    assert other.code == 0
    assert "training_results_v2.1 is judged by mlperf-training-1.0.0, which is not" in other.err
    assert (none.code, ours.code) == (2, 2)
    assert "expected results that mlperf-training-5.1.0 has rules for" in none.sentence
    assert "found hybridperf-1.0 for training_results_v2.1" in ours.sentence


def test_a_ruleset_judges_a_round_that_has_none(
    hybridperf: Callable[..., Finished], round_: Path
) -> None:
    later = round_.rename(round_.with_name("training_results_v9.9"))
    good = str(later / "acme" / "results" / "good")

    chosen = hybridperf("check", good, "--ruleset", "mlperf-training-2.1.0")
    none = hybridperf("check", good)
    unfit = hybridperf("check", good, "--ruleset", "mlperf-training-5.1.0")

    assert (chosen.code, none.code, unfit.code) == (0, 2, 2)
    assert "training_results_v9.9 is judged by mlperf-training-2.1.0" in chosen.err
    assert "name a ruleset with --ruleset: one of mlperf-training-0.7.0, " in none.sentence
    assert "choose mlperf-training-3.0.0 or mlperf-training-3.1.0 or" in unfit.sentence
    assert "with --ruleset" not in unfit.sentence


@pytest.mark.parametrize("edition", ["6.0", "6.1"])
def test_a_ruleset_that_no_log_tested_says_so(
    hybridperf: Callable[..., Finished], tmp_path: Path, edition: str
) -> None:
    result = _result(tmp_path, "one", folder_name="flux1")
    (tmp_path / "training_results_v2.1").rename(tmp_path / f"training_results_v{edition}")

    done = hybridperf("check", str(tmp_path / f"training_results_v{edition}"))

    assert done.code == 3, result
    assert f"mlperf-training-{edition}.0 was not tested on logs" in done.err


def test_errors_in_other_files_are_counted_on_the_first_screen(
    hybridperf: Callable[..., Finished], package: tuple[Path, Path]
) -> None:
    root, _ = package
    (root / SYSTEM_FILE).write_text(json.dumps(description(cooling=True)))

    done = hybridperf("check", str(root), "--mode", "strict")
    lines = done.out.splitlines()

    assert done.code == 3
    assert lines[1].strip() == "1 result: 1 valid"
    assert lines[3].strip() == "1 error in other files than logs: INVALID as a whole"


def test_a_ruleset_from_a_file_judges(
    hybridperf: Callable[..., Finished], round_: Path, tmp_path: Path
) -> None:
    good = str(round_ / "acme" / "results" / "good")
    file = tmp_path / "stricter.toml"
    file.write_text(
        'name = "stricter"\nsource = "us"\nextends = "mlperf-training-2.1.0"\n'
        "[[group]]\n"
        'when = { submission_division = "closed", submission_benchmark = "resnet" }\n'
        "keys.eval_accuracy = { extends = true, reached = { minimum = 0.99 } }\n"
    )

    done = hybridperf("check", good, "--ruleset", str(file), "--json")

    assert done.code == 3
    assert json.loads(done.out)["ruleset"] == "stricter"
    for text, found in (
        ("x = [", "Invalid value"),
        ('name = "x"\nsomething = 1', "'something', which is not part of a ruleset"),
        ('extends = "../../etc"', "which is no known ruleset"),
        (
            file.read_text() + '[strict.rules."mlperf.nothing"]\n',
            "'mlperf.nothing', which is no rule",
        ),
        (file.read_text().replace("minimum", "least"), "'least', which is no constraint"),
        (
            file.read_text().replace("minimum = 0.99", 'holds = "value.x()"'),
            "which formulas do not have",
        ),
    ):
        file.write_text(text)
        refused = hybridperf("check", good, "--ruleset", str(file))
        assert refused.code == 2
        assert found in refused.sentence


def test_junit_skips_what_the_exit_status_does_not_count(
    hybridperf: Callable[..., Finished], round_: Path
) -> None:
    root = ET.fromstring(hybridperf("check", str(round_), "--format", "junit").out)

    assert root.get("skipped") == str(1 + 5)
    failed = [
        str(case.get("classname"))
        for case in root.iter("testcase")
        if case.find("failure") is not None
    ]
    assert sorted(failed) == [
        *["acme/results/bad/resnet"] * 3,
        "acme/results/short/resnet",
    ]


def test_the_words_of_the_package_checker(
    hybridperf: Callable[..., Finished], round_: Path
) -> None:
    done = hybridperf("check", str(round_), "--format", "mlperf")
    lines = done.out.splitlines()

    assert done.code == 3
    assert "INFO -  Running compliance checks in dir acme/results/bad/resnet" in lines
    assert "ERROR -  2 files do not comply, directory cannot be accepted" in lines
    assert "WARNING -  1 file does not comply, accepting this under olympic scoring" in lines
    assert "WARNING -  Skipping benchmark: gnn" in lines
    assert (
        "ERROR - Incorrect number of files in dir, or wrong file names in directory "
        "acme/results/short/resnet, found 4, expected 5" in lines
    )
    assert lines[-2].endswith(
        "PACKAGE CHECKER FOUND ERRORS, LOOK INTO ERROR LOG LINES AND FIX THEM."
    )


@pytest.fixture
def package(tmp_path: Path) -> tuple[Path, Path]:
    """A submission without errors, and reference convergence points for it."""
    root = write_submission(tmp_path / "training_results_v2.1")
    references = tmp_path / "rcps"
    references.mkdir()
    batch = where(resnet(), "global_batch_size")["value"]
    point = {"Benchmark": "resnet", "BS": batch, "Epochs to converge": [11] * 10}
    (references / "rcps_resnet.json").write_text(json.dumps({"point": point}))
    return root, references


def test_there_is_no_sentence_of_success_without_the_whole_package_checker(
    hybridperf: Callable[..., Finished], package: tuple[Path, Path]
) -> None:
    root, points = package
    success, references = "INFO - PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !", f"--rcp-set={points}"

    def said(*options: str) -> tuple[int, bool]:
        done = hybridperf("check", str(root), "--format", "mlperf", *options)
        return done.code, success in done.out.splitlines()

    assert said() == (0, False)
    assert said("--mode", "strict") == (0, False)
    assert said("--mode", "package", references) == (0, True)
    assert said("--mode", "strict", references) == (0, True)
    log = root / RESULT / "result_3.txt"
    write(log, [each for each in read_lines(log) if each["key"] != "seed"])
    assert said() == (0, False)
    assert said("--mode", "package", references) == (3, False)
    assert said("--mode", "strict", references) == (3, False)


def test_mode_package_judges_whole_results_of_mlperf(
    hybridperf: Callable[..., Finished], package: tuple[Path, Path]
) -> None:
    root, points = package
    mode, references = ("--mode", "package"), ("--rcp-set", str(points))

    log = hybridperf("check", str(root / RESULT / "result_0.txt"), *mode, *references)
    untested = hybridperf("check", str(root), *mode)
    ours = hybridperf("check", str(root), *mode, *references, "--ruleset", "hybridperf-1.0")
    strictly = hybridperf("check", str(root), "--mode", "strict")
    tested = hybridperf("check", str(root), *mode, *references)

    assert [each.code for each in (log, untested, ours, strictly, tested)] == [2, 2, 2, 0, 0]
    assert "expected folders of results with --mode package, found the log" in log.sentence
    assert "found none; name their folder with --rcp-set" in untested.sentence
    assert "expected --mode strict with ruleset hybridperf-1.0, found package" in ours.sentence
    assert "convergence was not tested; name the reference points with --rcp-set" in strictly.err
    assert tested.out.startswith(
        "judged by mlperf-training-2.1.0, as the package checker of the round"
    )
