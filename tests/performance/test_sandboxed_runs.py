"""Two real runs of one seed, one in the sandbox and one in open mode, in turns.

They live side by side, each with the harness's own launcher, server and trainer, and take turns
block by block (an epoch and its evaluation), ABBA; the one whose turn it is not waits for its
verdict. A block is timed by the harness, from its start to the count of its predictions, and by
the processor time of all threads of the run. Ranks have one thread, and all run on the same cores.
Where a process's memory lies makes it faster or slower for as long as it lives, by more than the
sandbox could: so both are started several times, first as often as second, and the median ratio of
a start is one observation. HYBRIDPERF_STARTS says how many there are (default 8).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.run.attempt import write_head
from hybridperf.run.launcher import launch
from hybridperf.run.processes import end_tree
from hybridperf.run.rank_server import RankServer
from hybridperf.run.sandbox import mode_of, sandbox_facts
from hybridperf.tasks.registry import find_task, task_path
from tests.performance.pairing import interval
from tests.run_spec import run_spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from hybridperf.run.spec import Mode, RunSpec

TASKS: Final = ("resnet/laptop", "bert/laptop")
STARTS: Final = int(os.environ.get("HYBRIDPERF_STARTS", "8"))
PAIRS: Final = 6  #: of blocks, of a start
SEED: Final = 1000
LONGEST_S: Final = 300  #: ends a run that hangs


class HeldServer(RankServer):
    """A server that gives the verdict, and so begins the next block, only when it is told to."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.counted_s: float | None = None  #: when the predictions of the block were counted

    def _decide(self) -> None:
        self.counted_s = time.perf_counter()

    def give_verdict(self) -> None:
        """Let the ranks go on."""
        self.counted_s = None
        super()._decide()


@dataclass
class Run:
    """One of the two runs."""

    server: HeldServer
    process: subprocess.Popen[bytes]

    def first_block(self) -> None:
        """Wait until the ranks have started and ended their first block, which is not timed."""
        self._await_count()

    def next_block(self) -> tuple[float, float]:
        """Carry out a block; return its seconds by the wall and of the processor."""
        before_s, start_s = _processor_s(self.process.pid), time.perf_counter()
        self.server.give_verdict()
        wall_s = self._await_count() - start_s
        return wall_s, _processor_s(self.process.pid) - before_s

    def _await_count(self) -> float:
        deadline_s = time.monotonic() + LONGEST_S
        while self.server.counted_s is None:
            self.server.serve(0.05)
            assert not self.server.problem, self.server.problem
            assert self.process.poll() is None, "the ranks have ended"
            assert time.monotonic() < deadline_s
        return self.server.counted_s


def _processor_s(root: int) -> float:
    """Return the processor time of all threads of a process and its descendants, in seconds."""
    total_ns = 0
    parent = psutil.Process(root)
    for process in (parent, *parent.children(recursive=True)):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


@contextlib.contextmanager
def _running(spec: RunSpec) -> Iterator[Run]:
    spec.write()
    spec.work.mkdir()
    write_head(spec)
    with contextlib.closing(HeldServer(spec)) as server:
        process = launch(spec, server.address, server.scratch)
        try:
            run = Run(server, process)
            run.first_block()
            yield run
        finally:
            end_tree(process, spec.path)


def _spec(task: str, ranks: int, mode: Mode, folder: Path) -> RunSpec:
    """Return a run of ``task`` that goes on for as many epochs as there are pairs, and more."""
    content = task_path(task).read_text()
    before = find_task(task)
    for key, old, new in (
        ("epochs", before.limits.epochs, PAIRS + 2),
        ("target", before.quality.target, 1.0),
        ("run_s", before.limits.run_s, 36_000),
    ):
        line = f"\n{key} = {old:g}\n"
        assert content.count(line) == 1, key
        content = content.replace(line, f"\n{key} = {new:g}\n")
    folder = folder / mode / "attempt"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(content)
    facts = sandbox_facts(mode, nodes=1)
    assert mode_of(before, mode) == mode, facts
    return run_spec(
        folder,
        task_path=str(folder / "task.toml"),
        plan=str(ParallelPlan(dp=ranks)),
        seed=SEED,
        mode=mode,
        sandbox=facts,
    )


@pytest.fixture
def as_many_cores_as_ranks(ranks: int) -> Iterator[None]:
    """Let both runs share the same cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:ranks]))
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(7200)
def test_blocks_of_a_run_in_the_sandbox(
    task: str,
    ranks: int,
    as_many_cores_as_ranks: None,
    tmp_path: Path,
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    wall, processor = list[float](), list[float]()

    def start() -> None:
        modes: list[Mode] = ["sandboxed", "open"]
        modes = modes if len(wall) % 2 else modes[::-1]
        folder = tmp_path / str(len(wall))
        with contextlib.ExitStack() as stack:
            runs = {
                mode: stack.enter_context(_running(_spec(task, ranks, mode, folder)))
                for mode in modes
            }
            ratios = []
            for number in range(PAIRS):
                taken = {mode: runs[mode].next_block() for mode in modes[:: 1 - 2 * (number % 2)]}
                pair = zip(taken["sandboxed"], taken["open"], strict=True)
                ratios.append([inside / outside for inside, outside in pair])
        wall.append(statistics.median(each for each, _ in ratios))
        processor.append(statistics.median(each for _, each in ratios))

    benchmark.pedantic(start, rounds=STARTS, iterations=1)

    for name, ratios in (("wall", wall), ("processor time", processor)):
        found = [round(each, 3) for each in (*interval(ratios), *sorted(ratios))]
        benchmark.extra_info[f"sandboxed over open by {name}: median, interval, starts"] = found
