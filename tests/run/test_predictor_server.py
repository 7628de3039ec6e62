"""One process per run set imports torch and forks the predictors; nothing outlives a scoring."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hybridperf.run.rescore import PredictorServer
from tests.run.conftest import LONGEST_S, find, wait_until
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.run.rescore import Scoring
    from hybridperf.run.spec import RunSpec
    from tests.run.conftest import Bench

PREDICTOR = """
import os, pathlib, sys, time
note = pathlib.Path(os.environ["HYBRIDPERF_RUN"]).with_name("note.txt")
torch = sys.modules.get("torch")
note.write_text(f"{os.getppid()} {os.getsid(0) == os.getpid()} {id(torch)} {os.getpid()}")
print("said")
"""


@pytest.fixture
def server() -> Iterator[PredictorServer]:
    with contextlib.closing(PredictorServer()) as server:
        yield server


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    package = tmp_path / "some_predictor"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "run").mkdir()
    return run_spec(
        tmp_path / "run",
        trainer="some_predictor",
        division="open",  # in the closed one the predictor is the suite's own
    )


def predict(spec: RunSpec, code: str) -> None:
    """Let the predictor be ``code``, after it has noted what it is."""
    package = Path(spec.folder).with_name("some_predictor")
    (package / "predict.py").write_text(PREDICTOR + code)


def status_of(scoring: Scoring) -> int:
    deadline_s = time.monotonic() + LONGEST_S
    while (status := scoring.poll(1)) is None:
        assert time.monotonic() < deadline_s
    return status


def notes(spec: RunSpec) -> list[str]:
    return Path(spec.folder, "note.txt").read_text().split()


def test_all_scorings_are_forks_of_one_process_that_has_imported_torch(
    server: PredictorServer, spec: RunSpec, tmp_path: Path
) -> None:
    predict(spec, "sys.exit(int('second' in str(note)) * 3)")
    other = dataclasses.replace(spec, folder=str(tmp_path / "second"))
    Path(other.folder).mkdir()

    assert status_of(server.start(spec)) == 0
    assert status_of(server.start(other)) == 3

    (parent, leads_session, torch, pid), second = notes(spec), notes(other)
    assert second[:3] == [parent, "True", torch]
    assert (leads_session, pid != second[3]) == ("True", True)
    assert torch != str(id(None))
    assert [path.read_text() for path in (spec.output, other.output)] == ["said\n"] * 2
    server.close()
    assert not psutil.pid_exists(int(parent))


def test_a_predictor_is_ended_with_its_descendants(server: PredictorServer, spec: RunSpec) -> None:
    predict(
        spec,
        """
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)"], {})
time.sleep(3600)
""",
    )
    scoring = server.start(spec)
    wait_until(lambda: find(Path(spec.folder), "note.txt") and len(notes(spec)) == 4)
    root = psutil.Process(int(notes(spec)[0]))
    wait_until(lambda: len(root.children()) == 3)  # two daemons, and the predictor itself
    descendants = root.children(recursive=True)

    scoring.end()

    assert scoring.returncode == -signal.SIGKILL
    assert not any(process.is_running() for process in descendants)
    predict(spec, "")
    assert status_of(server.start(spec)) == 0
    assert notes(spec)[0] == str(root.pid)  # the server has outlived it


def test_a_server_that_was_killed_fails_the_scoring_and_another_one_takes_the_next(
    server: PredictorServer, spec: RunSpec
) -> None:
    predict(spec, "time.sleep(3600)")
    scoring = server.start(spec)
    wait_until(lambda: find(Path(spec.folder), "note.txt") and len(notes(spec)) == 4)
    first, predictor = int(notes(spec)[0]), int(notes(spec)[3])

    os.kill(first, signal.SIGKILL)

    assert status_of(scoring) == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(predictor))
    predict(spec, "")
    assert status_of(server.start(spec)) == 0
    assert notes(spec)[0] != str(first)


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_that_a_predictor_started_outlives_its_scoring(
    bench: Bench, *, killed: bool
) -> None:
    daemon = bench.note("daemon")
    fault = "predict leaves a daemon"
    process = bench.start(FAULT=fault, DAEMON=str(daemon))
    wait_until(daemon.read_text)
    if killed:
        process.kill()

    process.communicate(timeout=LONGEST_S)

    wait_until(lambda: not psutil.pid_exists(int(daemon.read_text())))
    wait_until(lambda: not bench.processes_left())
    if not killed:
        assert process.returncode == 0
        bench.assert_settled()
