"""What ``pip install hybridperf`` is in a project that has a package ``suite`` of its own.

Run by ``tox -e light``, where the wheel is installed without extras.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import suite

HERE = Path(__file__).parent
SUBMISSIONS = HERE.parents[1] / "submissions"
HYBRIDPERF = Path(sys.executable).with_name("hybridperf")
SECONDS = 600  # bounds a command that hangs; none takes more than a few


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=HERE
    )


def hybridperf(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(HYBRIDPERF, *arguments)


def test_a_package_called_suite_is_the_projects_own() -> None:
    assert vars(suite)["ANSWER"] == 42
    assert Path(suite.__file__).parent == HERE / "suite"


@pytest.mark.parametrize(
    "module", ["torch", "torchvision", "transformers", "datasets", "pandas", "pyarrow", "sklearn"]
)
def test_what_only_training_and_tables_take_is_not_installed(module: str) -> None:
    assert importlib.util.find_spec(module) is None


def test_the_wheel_has_its_data_and_no_tests() -> None:
    paths = {str(path) for path in importlib.metadata.files("hybridperf") or ()}

    assert {
        "hybridperf/py.typed",
        "hybridperf/report/templates/index.html.j2",
        "hybridperf/rules/rulesets/hybridperf-1.0.toml",
        "hybridperf/system/catalog.toml",
        "hybridperf/tasks/resnet/laptop.toml",
        "hybridperf_reference/py.typed",
    } <= paths
    tops = {path.partition("/")[0] for path in paths if path.endswith(".py")}
    assert tops == {"hybridperf", "hybridperf_reference"}


def test_check_judges_every_log() -> None:
    done = hybridperf("check", SUBMISSIONS, "--json")

    verdict = json.loads(done.stdout)
    missed = verdict["counts"]["results"]["did not converge"]
    assert done.returncode == (1 if missed else 0), done.stderr
    assert len(verdict["logs"]) == len(list(SUBMISSIONS.rglob("result_*.txt")))


@pytest.mark.parametrize("form", ["text", "json", "csv"])
def test_score_prints_every_result(form: str) -> None:
    done = hybridperf("score", SUBMISSIONS, "--format", form)

    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"{name}/laptop" in done.stdout for name in ("resnet", "vgg", "vit", "bert"))


def test_compare_sets_two_results_side_by_side() -> None:
    a, b = sorted(SUBMISSIONS.glob("*/results/*/resnet-laptop"))[:2]

    done = hybridperf("compare", a, b)

    assert (done.returncode, done.stderr) == (0, "")
    assert "B / A" in done.stdout


def test_compare_ends_with_a_status_of_its_own_if_slower_than_the_baseline() -> None:
    results = SUBMISSIONS / "hybridperf/results"
    a, b = (results / f"2c-amd-epyc-2026-11-{each}/resnet-laptop" for each in ("dp1", "dp2"))

    done = hybridperf("compare", a, b, "--fail-if-slower", "3%")

    assert (done.returncode, done.stderr) == (6, "")
    assert "slower by more than 3 %" in done.stdout


def test_report_writes_the_pages(tmp_path: Path) -> None:
    submissions, out = tmp_path / "submissions", tmp_path / "reports"
    submissions.symlink_to(SUBMISSIONS)  # beside the report, to which the page's links are relative

    done = hybridperf("report", submissions, "--out", out)

    assert (done.returncode, done.stderr) == (0, "")
    # By path: this environment imports nothing of the repository.
    published_board = runpy.run_path(str(HERE.parent / "published.py"))["published_board"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == published_board()


@pytest.mark.parametrize("command", ["list", "system"])
def test_commands_that_describe_need_no_more(command: str) -> None:
    done = hybridperf(command, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_the_doctor_says_how_to_get_what_training_takes() -> None:
    done = hybridperf("doctor")

    assert done.returncode == 4
    assert (
        "MISSING   torch: not installed -> Install it with: pip install 'hybridperf[train]'."
        in (done.stdout)
    )


@pytest.mark.parametrize(
    "command",
    ["run resnet/laptop", "rcp make resnet/laptop", "scale resnet/laptop --devices 1,2"],
)
def test_training_says_in_one_sentence_what_it_needs(command: str, tmp_path: Path) -> None:
    done = hybridperf(*command.split(), "--out", tmp_path / "out")

    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "hybridperf: expected the package torch, found no such package; "
        "install it with: pip install 'hybridperf[train]'.\n"
    )
    assert not (tmp_path / "out").exists()


def test_scores_are_written_but_for_parquet_which_says_what_it_needs(tmp_path: Path) -> None:
    done = hybridperf("score", SUBMISSIONS, "--out", tmp_path)

    assert done.returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"scores.csv", "scores.json"}
    assert done.stderr.count("\n") == 1
    assert "pip install 'hybridperf[tables]'" in done.stderr


def test_pytest_without_its_plugin_for_benchmarks_runs_tests_and_refuses_benchmarks(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_user.py").write_text(
        "def test_unit():\n    pass\n\n\ndef test_mine(time_to_train):\n    time_to_train('x')\n",
        encoding="utf-8",
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    pytest_here = (sys.executable, "-m", "pytest", "-W", "error", "--strict-markers", tmp_path)

    plain, asked = run(*pytest_here), run(*pytest_here, "--benchmark")

    assert plain.returncode == 0, plain.stdout
    assert "1 passed, 1 skipped" in plain.stdout
    assert asked.returncode == pytest.ExitCode.USAGE_ERROR
    sentence = (
        "--benchmark needs pytest-benchmark: install it with: pip install 'hybridperf[train]'"
    )
    assert asked.stderr.strip() == f"ERROR: {sentence}"
