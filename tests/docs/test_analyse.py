"""docs/analyse.md: its script runs, prints tables and draws pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hybridperf.report.frames import CURVE_COLUMNS, RUN_COLUMNS, columns_markdown
from tests.docs.conftest import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path


def test_the_script_of_the_page_makes_tables_and_a_scaling_plot(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    (tmp_path / "submissions").symlink_to(ROOT / "submissions")
    script = "\n".join(blocks("analyse", "python"))

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT / "suite")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout.count("resnet/laptop") > 2
    assert "speed-up" in (tmp_path / "scaling.svg").read_text()
    assert (tmp_path / "curves.svg").stat().st_size > 0


def test_every_column_of_runs_and_evaluations_is_documented() -> None:
    table = columns_markdown(RUN_COLUMNS)

    assert (
        "| `time_to_train_s` | time to train; missing unless the target was reached | s |" in table
    )
    assert len(columns_markdown(CURVE_COLUMNS).splitlines()) == 2 + len(CURVE_COLUMNS)
