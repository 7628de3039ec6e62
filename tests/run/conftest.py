"""Runs as processes, and what must be true of a folder whatever became of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from hybridperf.log.package import Package, find_results
from hybridperf.log.reader import read_log
from hybridperf.rules.check import check_path
from hybridperf.run.provenance import file_sha256
from hybridperf.run.spec import RUN_VARIABLE
from hybridperf.tasks import registry
from tests.run.command_server import CommandServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.run.command_server import Command

ROOT: Final = Path(__file__).parents[2]
FAULTY: Final = "tests.trainers.faulty"
OPEN: Final = ("--division", "open")  #: which a model that is not the task's belongs to
FORKS: Final = CommandServer()
LONGEST_S: Final = 1200.0  #: ends a test that hangs; a busy machine must not fail one
#: Limits of time that no run on a busy machine reaches, unless a test says otherwise.
GENEROUS: Final = dict.fromkeys(("initialisation_s", "run_s", "silence_s", "ending_s"), 3600.0)


@dataclass(frozen=True)
class Finished:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Return the one sentence that a refused command says."""
        (line,) = (line for line in self.err.splitlines() if line.startswith("hybridperf: "))
        return line


@dataclass
class Bench:
    """A folder of results, and commands that work in it."""

    out: Path
    tasks: Path
    processes: list[Command] = field(default_factory=list)
    server: CommandServer | None = FORKS  #: of its commands; None: each starts as a user's does
    starter: tuple[str, ...] = ()  #: a command that starts the command that follows

    def start(
        self,
        *arguments: str,
        runs: int = 1,
        trainer: str = FAULTY,
        **faults: str,
    ) -> Command:
        """Start ``hybridperf run``; ``faults`` are variables of its environment."""
        run = [
            "run",
            "resnet/laptop",
            "--trainer",
            trainer,
            *OPEN,
            "--runs",
            str(runs),
            "--out",
            str(self.out),
        ]
        return self.command(*run, *arguments, **faults)

    def command(self, *arguments: str, **variables: str) -> Command:
        """Start ``hybridperf`` with ``arguments``, by `starter` if there is one."""
        own = {"PYTHONPATH": str(ROOT), "TASKS": str(self.tasks), "LIMITS": json.dumps(GENEROUS)}
        environment = os.environ | own | variables
        process: Command
        if self.server is not None and not self.starter:
            process = self.server.start(arguments, environment)
        else:
            process = subprocess.Popen(
                [*self.starter, sys.executable, "-m", "tests.run.driver", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **keywords: Any) -> Finished:
        """Carry ``hybridperf run`` out."""
        return finished(self.start(*arguments, **keywords))

    def say(self, *arguments: str) -> Finished:
        """Carry another command out."""
        return finished(self.command(*arguments))

    def strike(self, fault: str, *arguments: str, rank: int = 0, **keywords: Any) -> Finished:
        """Carry ``hybridperf run`` out with a fault that strikes once."""
        return self.run(
            *arguments, FAULT=fault, FAULT_RANK=str(rank), FAULT_ONCE=str(self.note()), **keywords
        )

    def note(self, name: str = "once") -> Path:
        """Return an empty file, which trainers may write also from the sandbox."""
        path = self.out.parent / name
        path.write_text("")
        return path

    def change_task(self, **limits: float) -> None:
        """Change numbers of the task, such as ``epochs``."""
        path = self.tasks / "resnet/laptop.toml"
        text = path.read_text()
        for key, value in limits.items():
            text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
            assert count == 1
        path.write_text(text)

    @property
    def package(self) -> Package:
        """Return the one result."""
        (package,) = find_results(self.out)
        return package

    def manifests(self) -> list[dict[str, Any]]:
        """Return the manifest of each sealed attempt.

        One without a log is of an attempt whose seal was cut off; sealing it again replaces it.
        """
        logs = sorted(self.out.rglob("result_*.txt"), key=lambda path: int(path.stem[7:]))
        return [json.loads(log.with_suffix(".json").read_text()) for log in logs]

    def outcomes(self) -> list[str]:
        """Return how each sealed attempt ended."""
        return [manifest["outcome"] for manifest in self.manifests()]

    def orders(self) -> list[Path]:
        """Return the orders of attempts that are running or were left behind."""
        return list(self.out.rglob("run.json"))

    def await_batches(self, count: int = 1) -> None:
        """Wait until rank 0 has begun so many batches; no command that runs may end before."""
        running = [each for each in self.processes if each.poll() is None]

        def begun() -> bool:
            ended = [finished(each) for each in running if each.poll() is not None]
            assert not ended, ended
            return any(
                int.from_bytes(path.read_bytes()[:8], "little") >= count
                for path in find(self.out, "pulse.bin")
            )

        wait_until(begun)

    def kill_harness_of_hanging_run(self) -> Path:
        """Start a run that hangs in its second epoch, kill its harness, and return its order."""
        process = self.start(FAULT="hang")
        self.await_batches(42)
        process.kill()
        process.communicate()
        wait_until(lambda: not self.processes_left())
        (order,) = self.orders()
        return order

    def processes_left(self, attempt: str = "") -> list[psutil.Process]:
        """Return all processes that work on some run of this folder, or on one attempt."""
        left = []
        for process in psutil.process_iter():
            try:
                order = process.environ().get(RUN_VARIABLE, "")
                if order.startswith(str(self.out)) and attempt in order:
                    left.append(process)
            except (psutil.Error, OSError):
                continue
        return left

    def assert_consistent(self) -> None:
        """Every sealed attempt is whole, and nothing is half written."""
        for text in self.out.rglob("result_*.txt"):
            manifest = json.loads(text.with_suffix(".json").read_text())
            assert manifest["log"] == {"path": text.name, "sha256": file_sha256(text)}
            log = read_log(text)
            assert log.chained
            assert log.findings == []
        for system in self.out.rglob("systems/*.json"):
            json.loads(system.read_text())

    def assert_settled(self) -> None:
        """No process is left, nor a file that was only for the time of a run."""
        assert self.processes_left() == []
        self.assert_consistent()
        names = {re.sub(r"_\d+", "_N", path.name) for path in self.out.rglob("resnet-laptop/*")}
        working = {".lock", ".seeds.json", ".output_N.txt"}
        kept = {"SHA256SUMS", "result_N.txt", "result_N.json", "predictions_N.npy"}
        assert names <= working | kept

    def assert_goes_on(self, *arguments: str, **keywords: Any) -> None:
        """The same command completes, with the seed of the attempt that did not."""
        before = self.manifests()
        done = self.run(*arguments, **keywords)
        assert done.code == 0, done
        self.assert_settled()
        (first, *_), last = before, self.manifests()[-1]
        assert last["outcome"] == "success"
        assert last["seed"] == first["seed"]
        assert all(m in self.manifests() for m in before)
        assert self.rules_broken() == {"result.ended"}

    def rules_broken(self) -> set[str]:
        """Return what ``hybridperf check`` finds, warnings included."""
        return {finding.rule for finding in check_path(self.out).findings}


def finished(process: Command, timeout_s: float = LONGEST_S) -> Finished:
    """Wait for a command; no command ever shows a traceback."""
    out, err = process.communicate(timeout=timeout_s)
    assert "Traceback" not in out + err, err
    assert process.returncode is not None
    done = Finished(process.returncode, out, err)
    others = [line for line in err.splitlines() if not line.startswith("hybridperf: ")]
    assert all(re.match(r"  attempt \d+: ", line) for line in others), err
    assert len(err.splitlines()) - len(others) <= 1, err
    return done


def find(folder: Path, name: str) -> list[Path]:
    """Return what is called ``name`` under a folder that others change meanwhile."""
    # Not rglob: it raises where a folder goes away between being listed and being entered.
    return [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        if name in folders or name in files
    ]


def wait_until(holds: Callable[[], object], timeout_s: float = LONGEST_S) -> None:
    """Wait for something to become true."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture(scope="session")
def timed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the folder of one honest run, of the task as it is, and how long its command took."""
    folder, tasks = tmp_path_factory.mktemp("first") / "out", ROOT / "suite/hybridperf/tasks"
    bench = Bench(folder, tasks, server=None)
    start_s = time.monotonic()
    assert bench.run().code == 0
    return bench.out, time.monotonic() - start_s


@pytest.fixture(scope="session")
def first_run(timed_run: tuple[Path, float]) -> Path:
    """The folder of one honest run; not to be changed."""
    return timed_run[0]


def limits(**limits_s: float) -> dict[str, Any]:
    """Return the variable that gives the runs of one command other limits of time."""
    return {"LIMITS": json.dumps(GENEROUS | limits_s)}


@pytest.fixture(scope="session")
def whole_run_s(timed_run: tuple[Path, float]) -> float:
    """How long a whole command takes here and now: what no single step of an honest run takes."""
    return timed_run[1]


@pytest.fixture
def finished_run(first_run: Path, tmp_path: Path) -> Path:
    """A copy of one honest run, to be damaged."""
    return Path(shutil.copytree(first_run, tmp_path / "finished"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    tasks = tmp_path / "tasks"
    (tasks / "resnet").mkdir(parents=True)
    laptop = (ROOT / "suite/hybridperf/tasks/resnet/laptop.toml").read_text()
    (tasks / "resnet/laptop.toml").write_text(laptop.replace("count = 5", "count = 1"))
    monkeypatch.setattr(registry, "_ROOT", tasks)
    bench = Bench(tmp_path / "out", tasks)
    yield bench
    for process in bench.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for left in bench.processes_left():
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
