"""``hybridperf run`` as a user starts it, nothing left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from hybridperf.log.package import find_results, read_result
from hybridperf.rules.check import check_result
from tests.run.conftest import ROOT, finished

if TYPE_CHECKING:
    from pathlib import Path

# Where tests run in the background, SIGINT is ignored; a user's terminal lets it through.
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from hybridperf.cli import main
sys.exit(main())
"""
NEAREST = ("--trainer", "tests.trainers.nearest", "--division", "open")
COMMAND = (sys.executable, "-c", CODE)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "run", "resnet/laptop", *NEAREST, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )


def test_a_result_of_an_honest_trainer_on_two_ranks_keeps_the_rules(tmp_path: Path) -> None:
    done = finished(start("--plan", "dp=2", "--runs", "1", "--json", "--out", str(tmp_path)))
    assert done.code == 0
    assert done.err == ""
    answer = json.loads(done.out)
    assert len(answer["times_to_train_s"]) == 1
    (package,) = find_results(tmp_path)
    assert str(package.folder) == answer["folder"]
    findings = check_result(read_result(package))
    assert [finding.rule for finding in findings] == ["result.run_count"]  # it takes five
    assert {path.name for path in package.folder.iterdir()} == {
        ".lock",
        ".seeds.json",
        "SHA256SUMS",
        "predictions_0.npy",
        "result_0.json",
        "result_0.txt",
    }


def test_an_interrupt_before_anything_has_begun_leaves_nothing(tmp_path: Path) -> None:
    process = start("--out", str(tmp_path / "out"))
    assert process.stdout is not None
    assert "5 runs to make" in process.stdout.readline()  # now it describes the system
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.code == 5
    assert done.sentence == "hybridperf: interrupted; give the same command again to resume."
    assert not (tmp_path / "out").exists()
