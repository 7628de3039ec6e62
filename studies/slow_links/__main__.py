"""Measure step times over slow links by method, and publish them.

    python -m studies.slow_links run --seconds 240
    python -m studies.slow_links publish

The first command measures the blocks missing in ``blocks.jsonl``, alternating between methods and
rates, until its time is over; repeat it to continue. It needs Linux, root, and an idle machine. The
second command writes ``tables.md`` and ``steps.svg``; ``--evidence`` is the submission of
``studies.methods``, with the samples to target of each method.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import psutil

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode
from studies.plot import line_chart
from studies.slow_links.blocks import (
    AVERAGING_WORK,
    METHODS,
    PROFILE,
    RATES_MBIT_PER_S,
    REPETITIONS,
    TASKS,
    TRANSFERS,
    Record,
    add_averaging_work,
    add_link,
    add_profile,
    add_record,
    profiled_ranks,
    read_links,
    read_profiles,
    read_records,
)
from studies.slow_links.projection import (
    projected_plans,
    projections,
    unlimited_mbit_per_s,
)
from studies.slow_links.shaped_link import (
    ADDRESSES,
    INTERFACE,
    LinkShape,
    ShapedLink,
    why_no_shaped_link,
)
from studies.slow_links.tables import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

__all__ = ["RESULTS", "World", "measure", "missing"]

RESULTS: Final = Path(__file__).with_name("blocks.jsonl")
_TRANSFER_BYTES: Final = (2**12, 2**15, 2**17, 2**18, 2**20, 2**22)
_PROFILED_STEPS: Final = 25
_BLOCK_S: Final = 0.5  # intended seconds of a block of steps
_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 16  # of four steps


class World:
    """Ranks that wait for orders, half at each end of ``link``."""

    def __init__(self, link: ShapedLink, task: str, ranks: int, keys: Sequence[str]) -> None:
        self._link, self._task, self._ranks, self._keys = link, task, ranks, keys
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []

    def __enter__(self) -> Self:
        for rank in range(self._ranks):
            end = rank * len(ADDRESSES) // self._ranks
            module = "studies.slow_links.worlds"
            words = (sys.executable, "-m", module, self._task, str(end), *self._keys)
            environment = {
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": str(29500 + self._ranks),
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(self._ranks),
            }
            self._errors.append(tempfile.TemporaryFile("w+"))
            self._processes.append(
                subprocess.Popen(
                    self._link.command(end, *words),
                    env=os.environ | environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors[-1],
                    text=True,
                    start_new_session=True,  # Ctrl-C reaches this process alone
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        for file in self._errors:
            file.close()

    def answers(self) -> list[str]:
        """Return the next line of each rank.

        Raises:
            RuntimeError: if a rank ended, with its output.
        """
        lines = []
        for process, errors in zip(self._processes, self._errors, strict=True):
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                errors.seek(0)
                raise RuntimeError(f"a rank of {self._task} ended:\n{errors.read()[-8000:]}")
            lines.append(line)
        return lines

    def processor_s(self) -> float:
        """Return the processor time of the ranks."""
        taken = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in taken)

    def order(self, key: str, how_much: object) -> dict[str, Any]:
        """Order training by method ``key``, or a measurement.

        Returns rank 0's answer, with both ends' sent bytes.
        """
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([key, how_much]) + "\n")
            process.stdin.flush()
        found = [json.loads(line) for line in self.answers()]
        sent = tuple(found[end * self._ranks // 2]["sent_bytes"] for end in range(len(ADDRESSES)))
        own: dict[str, Any] = found[0]
        return own | {"sent_bytes": sent}


def measure(results: Path, tasks: Sequence[str], seconds: float) -> bool:
    """Measure for ``seconds``; return whether all blocks are measured."""
    stop_s = time.monotonic() + seconds
    for task in tasks:
        places = list(missing(results, task))
        if places and not _measure_task(results, task, places, stop_s):
            return False
    return True


def _measure_load(worlds: Collection[World], block: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of ``block``, with the number of processors busy with others."""
    start_s, busy_s = time.monotonic(), _busy_s() - sum(w.processor_s() for w in worlds)
    found = block()
    others_s = _busy_s() - sum(w.processor_s() for w in worlds) - busy_s
    return found | {"others": round(others_s / (time.monotonic() - start_s), 3)}


def _busy_s() -> float:
    """Return the seconds that all processors have been busy."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def missing(results: Path, task: str) -> Iterator[tuple[str, float, str, int]]:
    """Yield the blocks missing in ``results``; every second repetition is in reverse order."""
    done = {record.place for record in read_records(results)}
    for repetition in range(REPETITIONS):
        turn = [(task, rate, each.key, repetition) for rate in RATES_MBIT_PER_S for each in METHODS]
        yield from (place for place in turn[:: -1 if repetition % 2 else 1] if place not in done)


def _measure_links(results: Path, link: ShapedLink, world: World) -> None:
    """Measure the link at each rate missing in ``results``."""
    for rate in (each for each in RATES_MBIT_PER_S if each not in read_links(results)):
        shape = LinkShape.of_rate(rate * 1e6) if rate else None
        link.shape(shape)
        times: dict[str, list[tuple[int, float]]] = {kind: [] for kind in TRANSFERS}
        for kind, found in times.items():
            for count in _TRANSFER_BYTES:
                expected_s = count / shape.bytes_per_s if shape else 0.0
                repeats = 5 if expected_s > 0.02 else 51
                found.append((count, world.order(kind, [count, repeats])["seconds"]))
        add_link(results, rate, times)


def _measure_profiles(
    results: Path, link: ShapedLink, worlds: Mapping[int, World], task: str, repetition: int
) -> None:
    """Measure the profiles of a repetition of ``task`` missing in ``results``.

    One for each number of ranks, since ranks may share a processor. The averaging work is measured
    at each rate, where no ranks share a processor.
    """
    for ranks in worlds.keys() - profiled_ranks(results, task, repetition):
        if ranks == len(ADDRESSES):
            for rate in RATES_MBIT_PER_S:
                link.shape(LinkShape.of_rate(rate * 1e6) if rate else None)
                share = worlds[ranks].order(AVERAGING_WORK, None)[AVERAGING_WORK]
                add_averaging_work(results, task, repetition, rate, share)
        link.shape(None)
        profile = worlds[ranks].order(PROFILE, _PROFILED_STEPS)[PROFILE]
        add_profile(results, task, repetition, profile)


def _measure_task(
    results: Path, task: str, places: Sequence[tuple[str, float, str, int]], stop_s: float
) -> bool:
    ranks = {each.key: each.ranks for each in METHODS}
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(ShapedLink())
        worlds = {
            count: stack.enter_context(
                World(link, task, count, [each.key for each in METHODS if each.ranks == count])
            )
            for count in sorted(set(ranks.values()))
        }
        for world in worlds.values():
            world.answers()  # ready
        _measure_links(results, link, worlds[len(ADDRESSES)])
        link.shape(None)
        first = {key: worlds[count].order(key, _FEWEST_EPOCHS) for key, count in ranks.items()}
        for _, rate, key, repetition in places:
            if time.monotonic() > stop_s:
                return False
            _measure_profiles(results, link, worlds, task, repetition)
            link.shape(LinkShape.of_rate(rate * 1e6) if rate else None)
            expected_s = first[key]["step_s"]
            expected_s += first[key]["counted_bytes"] * 8 / (rate * 1e6) if rate else 0.0
            epochs = min(max(round(_BLOCK_S / expected_s / 4), _FEWEST_EPOCHS), _MOST_EPOCHS)
            train = functools.partial(worlds[ranks[key]].order, key, epochs)
            found = _measure_load(worlds.values(), train)
            add_record(results, Record(task, rate, key, repetition, **found))
    return True


def publish(results: Path, evidence: Path, out: Path) -> None:
    """Write the tables and the chart of the page from recorded blocks and converged runs."""
    records = read_records(results)
    profiles, links = read_profiles(results), read_links(results)
    unlimited = unlimited_mbit_per_s(links)
    parts = (
        "# Slow links: tables\n\nGenerated by `python -m studies.slow_links publish`.",
        tables(records, evidence, unlimited),
        projections(records, profiles, links),
        projected_plans(profiles, links),
    )
    (out / "tables.md").write_text("\n\n".join(parts) + "\n")
    (out / "steps.svg").write_text(_chart(records, unlimited) + "\n")


def _chart(records: Sequence[Record], unlimited: float) -> str:
    """Return the median step time of each method by rate, for the first task."""
    times = defaultdict[tuple[str, float], list[float]](list)
    for each in records:
        if each.task == TASKS[0]:
            times[each.method, each.rate_mbit_per_s or unlimited].append(1e3 * each.step_s)
    lines = {
        method.name: sorted(
            (rate, statistics.median(some))
            for (key, rate), some in times.items()
            if key == method.key
        )
        for method in METHODS
    }
    return line_chart(lines, x_label=f"{TASKS[0]}: rate of the link, Mbit/s", y_label="ms a step")


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("run", "publish"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of JSON lines")
    parser.add_argument("--seconds", type=float, default=240, help="limit of measuring time")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--evidence", type=Path, default=Path("submissions"), help="methods' runs")
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="folder of the pages")
    options = parser.parse_args()
    if options.action == "publish":
        publish(options.results, options.evidence, options.out)
        return ExitCode.OK
    if reason := why_no_shaped_link():
        print_line(f"no slow links on this machine: {reason}")
        return ExitCode.ENVIRONMENT
    try:
        done = measure(options.results, options.tasks, options.seconds)
    except KeyboardInterrupt:
        print_line("stopped: the same command resumes")
        return ExitCode.INTERRUPTED
    print_line("complete" if done else "incomplete: repeat the command")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(_main())
