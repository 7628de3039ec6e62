"""``pytest --benchmark`` as a user of the plugin meets it, in a project of their own.

Also run by ``tox -e plugin``, where pytest has no plugins but ours, pytest-benchmark and xdist.
"""

from __future__ import annotations

import html
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
import sys

def pytest_sessionfinish(session):
    if not session.config.option.benchmark:
        ours = {name for name in sys.modules if name.startswith("hybridperf")}
        assert ours == {"hybridperf", "hybridperf.pytest_plugin"}, ours
"""
TESTS = """
def test_unit():
    assert 1 + 1 == 2

def test_mine(time_to_train):
    other = {"set": {"optimizer.lr": 0.05}, "division": "open"}
    score = time_to_train("mine/task.toml", plan="dp=1", runs=7, **other)
    assert score.runs[0].completion == "reached"
    assert score.mean_s < 600

def test_wrong_plan(time_to_train):
    time_to_train("resnet/laptop", plan="pp=9")
"""
STRICT = ("-p", "no:timeout", "--strict-markers", "--strict-config", "-W", "error")


def make_project(folder: Path) -> Path:
    """Return a folder with a task of its own, a unit test, a benchmark, and one with a wrong plan.

    Its trainer is over in a second.
    """
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_user.py").write_text(TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    mine = folder / "mine"
    mine.mkdir()
    for path in (ROOT / "tests/trainers/nearest").glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("tests.trainers.nearest", "mine")
        (mine / path.name).write_text(text, encoding="utf-8")
    text = (ROOT / "suite/hybridperf/tasks/resnet/laptop.toml").read_text(encoding="utf-8")
    text = text.replace('"resnet/laptop"', '"mine/digits"', 1)
    text = text.replace('"hybridperf_reference"', '"mine"', 1)
    (mine / "task.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def run_pytest(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    own = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    environment = own | {"COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        STRICT,
        pytest.param(("-n", "2"), marks=pytest.mark.exhaustive),
        ("-p", "no:benchmark"),
        pytest.param(("-p", "no:cacheprovider"), marks=pytest.mark.exhaustive),
        pytest.param(("--benchmark-skip",), marks=pytest.mark.exhaustive),
        pytest.param(("--benchmark-disable",), marks=pytest.mark.exhaustive),
    ],
    ids=" ".join,
)
def test_benchmarks_are_skipped_with_the_reason_unless_asked_for(
    project: Path, arguments: tuple[str, ...]
) -> None:
    done = run_pytest(project, "-rs", *arguments)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "run with --benchmark" in done.stdout


def test_a_fixture_asked_for_during_a_test_is_skipped_too(project: Path) -> None:
    source = "def test_late(request):\n    request.getfixturevalue('time_to_train')\n"
    (project / "test_user.py").write_text(source, encoding="utf-8")

    done = run_pytest(project)

    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


@pytest.mark.exhaustive
def test_benchmarks_that_are_not_ours_are_reported_as_ever(project: Path) -> None:
    source = "def test_sum(benchmark):\n    assert benchmark(sum, (1, 2)) == 3\n"
    (project / "test_user.py").write_text(source, encoding="utf-8")

    done = run_pytest(project, "--benchmark-json", project / "times.json")

    assert done.returncode == 0, done.stdout
    times = json.loads((project / "times.json").read_text())
    assert times["machine_info"]["node"] == platform.node()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-p", "no:benchmark"), "--benchmark needs pytest-benchmark: drop -p no:benchmark"),
        (("--hp-plan", "dp"), "dp"),
        (("--benchmark-disable",), "--benchmark and --benchmark-disable exclude each other"),
        (("--hp-runs", "0"), "--hp-runs takes a whole number from 1"),
        (("--hp-fail-if-slower", "3%"), "expected --hp-baseline with --hp-fail-if-slower"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    project: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = run_pytest(project, "--benchmark", "--hp-out", project / "out", *arguments)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert sentence in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert not (project / "out").exists()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose benchmark has run, its results in ``out`` and saved as ``base``."""
    folder = make_project(tmp_path_factory.mktemp("measured"))
    other_folder = folder / "elsewhere"
    other_folder.mkdir()
    done = run_pytest(
        other_folder,
        folder / "test_user.py",
        "--benchmark",
        "--hp-runs=2",
        f"--hp-out={folder / 'out'}",
        *("-q", "-n", "2"),
        f"--benchmark-json={folder / 'times.json'}",
        f"--benchmark-storage={folder / 'saved'}",
        "--benchmark-save=base",
        *STRICT,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (folder / "stdout.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder


def test_benchmark_shows_times_to_train_and_publishes_them(measured: Path) -> None:
    shown = (measured / "stdout.txt").read_text(encoding="utf-8")

    assert "1 failed, 1 passed, 1 deselected" in shown
    assert "expected at most" in shown, "the plan that does not fit is refused in a sentence"
    assert "Traceback" not in shown
    assert "was not used at all" not in shown, "pytest-benchmark does not warn of what was refused"
    for words in ("starts", "reached the target in"):
        assert f"  mine/digits under dp=1, run 2 of 2: {words}" in shown
    _, _, end = shown.partition("= HybridPerf =")
    assert "dp=1" in end, "and scored at the end"
    (sentence,) = (line for line in end.splitlines() if line.startswith("mine/digits, version 1"))
    assert "no result of a hybrid plan" in sentence
    assert sentence in html.unescape((measured / "out/report/index.html").read_text())
    assert re.search(r"^next: +\S*open \S+/out/report/index.html$", end, re.MULTILINE)
    assert re.search(r"^next: .* --devices 8 ", end, re.MULTILINE)
    (result,) = measured.glob("out/local/results/*/mine-digits")
    times = json.loads((measured / "times.json").read_text())
    (benchmark,) = times["benchmarks"]
    logged = [_time_to_train_s(result / f"result_{number}.txt") for number in range(2)]
    assert benchmark["stats"]["min"] == pytest.approx(min(logged))
    assert benchmark["stats"]["max"] == pytest.approx(max(logged))
    assert benchmark["extra_info"]["plan"] == "dp=1"
    assert times["machine_info"]["node"] == ""
    assert platform.node() not in times["machine_info"].values()
    assert (measured / "out" / "report" / "index.html").is_file()
    assert "leaderboard: file://" in shown


def test_a_result_is_compared_with_its_baseline_by_a_test(measured: Path) -> None:
    shutil.copytree(measured / "out", measured / "base")
    gate = ("--hp-baseline=base", "--hp-fail-if-slower=3%")
    own = ("--benchmark", "--hp-runs=2", "--hp-out=out")  # complete: they are read again

    done = run_pytest(measured, "test_user.py::test_mine", *own, *gate, *STRICT)

    assert done.returncode == 0, done.stdout + done.stderr
    # Not slower where the two runs happen to take equally long.
    decision = (
        r"mine/digits under dp=1: (undecided whether|not) slower by more than 3 %: 1\.000 times"
    )
    assert re.search(decision, done.stdout)


def test_what_would_be_trained_is_printed_and_nothing_trained(project: Path) -> None:
    own = ("--benchmark", "--collect-only", "-q", "--hp-out=out", "--hp-runs=5")

    done = run_pytest(project, *own, "--hp-set=optimizer.lr=0.1", *STRICT)

    assert done.returncode == 0, done.stdout + done.stderr
    line = "test_user.py::test_mine: mine/digits under dp=1, 5 runs, not projected: "
    assert f"{line}mine has no modules units and profile" in done.stdout
    assert not (project / "out").exists()


@pytest.mark.parametrize(
    ("factor", "status"), [pytest.param(1.0, 0, marks=pytest.mark.exhaustive), (0.5, 1)]
)
def test_times_are_compared_with_saved_ones(measured: Path, factor: float, status: int) -> None:
    (saved,) = measured.glob("saved/*/*_base.json")
    times = json.loads((measured / "times.json").read_text())
    statistics = times["benchmarks"][0]["stats"]
    for name in ("min", "max", "mean"):
        statistics[name] *= factor
    saved.write_text(json.dumps(times), encoding="utf-8")

    done = run_pytest(
        measured,
        "test_user.py::test_mine",
        "--benchmark",
        "--hp-runs=2",
        "--hp-out=out",  # the runs there are complete: they are read again
        f"--benchmark-storage={measured / 'saved'}",
        "--benchmark-compare",
        "--benchmark-compare-fail=mean:5%",
        f"--benchmark-histogram={measured / 'histogram'}",
        *STRICT,
    )

    assert done.returncode == status, done.stdout + done.stderr
    assert ("Performance has regressed" in done.stdout + done.stderr) is bool(status)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert list(measured.glob("histogram*.svg"))


def _time_to_train_s(log: Path) -> float:
    lines = [json.loads(line.partition(":::MLLOG ")[2]) for line in log.read_text().splitlines()]
    start, stop = (
        next(line["time_ms"] for line in lines if line["key"] == key)
        for key in ("run_start", "run_stop")
    )
    return float(stop - start) / 1000
