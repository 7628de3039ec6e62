"""The whole walk, with the reference trainer on real data: run, check, score, report, reproduce."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def hybridperf(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from hybridperf.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one real run through a pipeline of two stages."""
    folder = tmp_path_factory.mktemp("walk")
    done = hybridperf("run", "resnet/laptop", "--plan", "pp=2", "--runs", "1", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "attempt 0: reached the target in" in done.stderr
    return folder


def test_a_real_run_keeps_every_rule_but_the_number_of_runs(out: Path) -> None:
    done = hybridperf("check", out, "--json")

    verdict = json.loads(done.stdout)
    assert [finding["rule"] for finding in verdict["findings"]] == ["result.run_count"]
    assert done.returncode == 0


def test_the_log_says_how_the_model_was_cut_and_what_the_time_was_made_of(out: Path) -> None:
    (log,) = out.rglob("result_0.txt")
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in log.read_text().splitlines()]
    by_key = {entry["key"]: entry for entry in entries}

    units = [stage["units"] for stage in by_key["hybridperf_partition"]["value"]]
    assert units[0][0] == "stem"
    assert len(units) == 2
    assert by_key["eval_accuracy"]["value"] >= 0.98
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    (*_, statistics) = (
        entry["value"]
        for entry in entries
        if entry["key"] == "tracked_stats" and "bubble" in entry["value"]
    )
    assert 0 < statistics["bubble"] < 1
    assert len(statistics["stages"]) == 2


def test_one_run_has_a_time_and_no_official_score(out: Path) -> None:
    (row,) = json.loads(hybridperf("score", out, "--json").stdout)

    assert row["plan"] == "pp=2,schedule=1f1b,microbatches=2"
    assert (row["runs"], row["required_runs"], row["official_minutes"]) == (1, 5, None)
    assert row["mean_s"] > 0


def test_the_report_has_the_page_and_the_command(out: Path) -> None:
    done = hybridperf("report", out)

    page = (out / "report" / "index.html").read_text()
    assert done.returncode == 0
    assert "provisional" in page
    assert "hybridperf run resnet/laptop --plan pp=2,schedule=1f1b,microbatches=2" in page


def test_the_same_command_again_has_nothing_left_to_do(out: Path) -> None:
    done = hybridperf("run", "resnet/laptop", "--plan", "pp=2", "--runs", "1", "--out", out)

    assert done.returncode == 0
    assert "complete in" in done.stdout
    assert len(list(out.rglob("result_*.txt"))) == 1
