from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_results, read_result
from hybridperf.rules.check import check_path
from tests.packages import write_result


def test_a_result_is_found_from_every_folder_above_it(tmp_path: Path) -> None:
    package = write_result(tmp_path / "sub", times_s=[10.0])
    place = package.folder

    for folder in (place, *place.parents[:4]):
        assert find_results(folder) == [package]


def test_results_are_sorted_by_organisation_system_and_benchmark(tmp_path: Path) -> None:
    names = [("zeta", "a"), ("acme", "b"), ("acme", "a")]
    for org, system in names:
        write_result(tmp_path, org=org, system=system, times_s=[10.0])

    assert [(each.org, each.system) for each in find_results(tmp_path)] == sorted(names)


def test_attempts_that_are_under_way_and_files_elsewhere_are_no_results(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    log = package.folder / "result_0.txt"
    begun = package.folder / ".attempt_1" / "result_1.txt"
    begun.parent.mkdir()
    shutil.copy(log, begun)
    shutil.copy(log, tmp_path / "result_0.txt")

    assert find_results(tmp_path) == [package]


@pytest.mark.parametrize(
    "name", ["result_x.txt", "result_01.txt", "result_\u0663.txt", "result_1234567.txt"]
)
def test_a_folder_without_a_numbered_log_holds_nothing_to_check(tmp_path: Path, name: str) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    (package.folder / "result_0.txt").rename(package.folder / name)

    with pytest.raises(UserError) as refusal:
        check_path(tmp_path)

    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert "no results" in str(refusal.value)


def test_a_log_in_a_folder_near_the_root_is_no_result() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder, "result_0.txt").touch()

        assert find_results(Path(folder)) == []


def test_runs_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0] * 11)

    result = read_result(package)

    assert [run.number for run in result.runs] == list(range(11))
    assert [run.log.value("seed") for run in result.runs] == list(range(1000, 1011))
    assert result.findings == ()


def test_facts_of_a_manifest_are_found_or_none(tmp_path: Path) -> None:
    (run,) = read_result(write_result(tmp_path, times_s=[10.0])).runs

    assert run.fact("supervisor", "run_s") == 10.0
    assert run.fact("supervisor", "absent") is None
    assert run.fact("seed", "deeper") is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff"])
def test_a_broken_manifest_and_system_file_are_findings(tmp_path: Path, content: bytes) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    (package.folder / "result_0.json").write_bytes(content)
    package.system_file.write_bytes(content)

    result = read_result(package)

    assert [finding.rule for finding in result.findings] == ["result.manifest", "system.file"]
    assert result.runs[0].manifest is None
    assert (result.system, result.system_sha256) == (None, "")


def test_findings_name_files_relative_to_the_submissions(tmp_path: Path) -> None:
    package = write_result(tmp_path, times_s=[10.0])
    (package.folder / "result_0.txt").write_text(":::MLLOG 5\n")

    (run,) = read_result(package).runs

    path = "acme/results/laptop/resnet-laptop/result_0.txt"
    assert run.log.path == path
    assert {finding.path for finding in run.log.findings} == {path}
