"""docs/quick_start.md and README.md: their commands end with an answer, as shown."""

from __future__ import annotations

import csv
import html
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.docs.conftest import ROOT, blocks, walk

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SHOWN = "".join(blocks("quick_start", "sh"))


@pytest.mark.exhaustive
def test_the_quick_start_ends_with_a_comparison_and_a_leaderboard(tmp_path: Path) -> None:
    _assert_answered(walk(SHOWN, tmp_path).done, tmp_path)


def test_the_quick_start_ends_so_for_results_that_are_there(tmp_path: Path) -> None:
    published = ROOT / "submissions/hybridperf"
    for result in published.glob("results/2c-amd-epyc-2026-11-*/vgg-laptop"):
        system = result.parent.name
        name = f"systems/{system}.json"
        shutil.copytree(result, tmp_path / "runs/hybridperf/results" / system / result.name)
        (tmp_path / "runs/hybridperf/systems").mkdir(exist_ok=True)
        shutil.copy(published / name, tmp_path / "runs/hybridperf" / name)
    lines = SHOWN.replace("runs/local", "runs/hybridperf").splitlines()
    script = "\n".join(line for line in lines if not line.startswith("hybridperf run "))

    _assert_answered(walk(script, tmp_path).done, tmp_path)


def _assert_answered(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "B / A: " in done.stdout
    page = html.unescape((folder / "runs/report/index.html").read_text(encoding="utf-8"))
    assert re.search(r"vgg/laptop: .*one process.* s against .* s", page)


def test_the_finding_of_the_readme_is_the_finding_of_the_leaderboard() -> None:
    with (ROOT / "reports/leaderboard.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["division"] == "closed"]
    one = {row["benchmark"]: row for row in rows if row["plan"] == "dp=1"}
    assert one.keys() == {row["benchmark"] for row in rows}
    assert {row["place_worst"] for row in one.values()} == {"1"}, "one process ties, or is slower"

    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratio = float(row["mean_s"]) / float(one[row["benchmark"]]["mean_s"])
        ratios.setdefault(row["plan"].split(",")[0], []).append(ratio)
    longer = {plan: f"{min(each):.2f} to {max(each):.2f} times" for plan, each in ratios.items()}
    sentence = (
        "on two cores, one process trains faster than every hybrid plan, on all four tasks: data "
        f"parallelism on two ranks takes {longer['dp=2']} as long, a pipeline of two stages "
        f"{longer['pp=2']}."
    )
    assert len(one) == 4
    assert sentence in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_sentence_that_the_readme_quotes_is_on_the_published_page() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    quoted = re.search(r'sentences such as "([^"]+)"', readme)

    assert quoted is not None
    page = html.unescape((ROOT / "reports/index.html").read_text(encoding="utf-8"))
    assert f"{quoted[1]}." in page
