"""``pytest --benchmark`` as a user of the plugin meets it, in a project of their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
def test_unit():
    assert 1 + 1 == 2

def test_mine(time_to_train):
    score = time_to_train("resnet/laptop", plan="dp=1", trainer="tests.trainers.nearest")
    assert score.runs[0].completion == "reached"

def test_wrong_plan(time_to_train):
    time_to_train("resnet/laptop", plan="pp=9")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a unit test, a benchmark, and one that cannot be."""
    (tmp_path / "test_user.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    environment = own | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_benchmarks_are_skipped_with_the_reason_unless_asked_for(project: Path) -> None:
    done = run_pytest(project, "-rs")

    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "run with --benchmark" in done.stdout


def test_benchmark_shows_times_to_train_and_publishes_them(project: Path) -> None:
    other_folder = project / "elsewhere"
    other_folder.mkdir()

    done = run_pytest(
        other_folder,
        str(project / "test_user.py"),
        "--benchmark",
        "--hp-runs=2",
        f"--hp-out={project / 'out'}",
        f"--benchmark-json={project / 'times.json'}",
    )

    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    assert "expected at most" in done.stdout, "the plan that does not fit is refused in a sentence"
    assert "Traceback" not in done.stdout
    assert "resnet/laptop under dp=1, run 2 of 2: reached the target in" in done.stdout, (
        "runs are told as they end"
    )
    assert "dp=1" in done.stdout.partition("= HybridPerf =")[2], "and scored at the end"
    (result,) = project.glob("out/local/results/*/resnet-laptop")
    times = json.loads((project / "times.json").read_text())
    (measured,) = times["benchmarks"]
    logged = [_time_to_train_s(result / f"result_{number}.txt") for number in range(2)]
    assert measured["stats"]["min"] == pytest.approx(min(logged))
    assert measured["stats"]["max"] == pytest.approx(max(logged))
    assert measured["extra_info"]["plan"] == "dp=1"
    assert times["machine_info"]["node"] == ""
    assert platform.node() not in times["machine_info"].values()
    assert (project / "out" / "report" / "index.html").is_file()
    assert "leaderboard: file://" in done.stdout


def _time_to_train_s(log: Path) -> float:
    lines = [json.loads(line.partition(":::MLLOG ")[2]) for line in log.read_text().splitlines()]
    start, stop = (
        next(line["time_ms"] for line in lines if line["key"] == key)
        for key in ("run_start", "run_stop")
    )
    return float(stop - start) / 1000
