"""Cheats on one of two nodes, on a kernel with Landlock: none counts, whichever node it is on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.log.reader import read_log
from hybridperf.rules.check import judge_result
from hybridperf.run.channel import (
    Channel,
    Evaluate,
    EvaluationVerdict,
    Predictions,
    Ready,
    Start,
    Welcome,
    connect,
)
from hybridperf.system.landlock import landlock_abi
from hybridperf.system.namespaces import why_no_namespaces
from hybridperf.tasks.registry import find_task
from tests.run.conftest import ROOT, Bench, bench, wait_until
from tests.run.pair import Pair, ended
from tests.run.served import served
from tests.run_spec import run_spec
from tests.trainers.cheat.attempts import ATTEMPTS, HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.run.rank_server import RankServer
    from hybridperf.run.spec import RunSpec

__all__ = ["bench"]  # a fixture

CHEAT = "tests.trainers.cheat"
TASK = find_task("resnet/laptop")
SAMPLES = TASK.data.eval_samples
STEPS = len(TASK.steps(TASK.blocks()[0]))  #: of the first block
#: what ranks of several nodes may do: they talk over the machines' network, and the launcher of
#: several ranks is in their sandbox
ALLOWED = {
    *("connects to another process", "listens for another process"),
    "stops the process that waits for it",
}
pytestmark = pytest.mark.skipif(
    landlock_abi() < 6, reason="needs Landlock with its scopes (Linux 6.12)"
)


@pytest.fixture
def pair(bench: Bench) -> Iterator[Pair]:
    pair = Pair(bench)
    with pair.reserved:
        yield pair


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Make every attempt on both nodes of a run, beside a sealed one; return what stopped each."""
    folder = tmp_path_factory.mktemp("cheat")
    pair = Pair(Bench(folder / "out", ROOT / "suite/hybridperf/tasks"))
    notes = [pair.bench.note(f"node_{node}") for node in (0, 1)]
    with pair.reserved:
        assert [each.code for each in pair.run(trainer=CHEAT, CHEAT="nothing")] == [0, 0]
        variables = {"CHEAT_PORT": str(pair.port), "CHEAT_NAME": "x", "CHEAT_SOCKET": "/run/x"}
        variables |= {"CHEAT": "tries everything"}
        started = [
            pair.start(node, trainer=CHEAT, runs=2, FAULT_ONCE=str(note), **variables)
            for node, note in enumerate(notes)
        ]
        done = ended(*started)
    assert [each.code for each in done] == [0, 0], done
    pair.assert_settled("success", "success")
    return [json.loads(note.read_text()) for note in notes]


@pytest.mark.parametrize("node", [0, 1])
def test_what_the_sandbox_forbids_fails_on_either_node(
    tried: list[dict[str, str]], node: int
) -> None:
    hidden = set() if why_no_namespaces() else set(HIDDEN)
    refused = {"PermissionError", "CalledProcessError", "OSError", "ConnectionRefusedError"}
    refused |= {"FileNotFoundError"} if hidden else set()

    succeeded = {
        name: by
        for name, by in tried[node].items()
        if name in (set(ATTEMPTS) | hidden) - ALLOWED and by not in refused
    }

    assert succeeded == {}
    assert {"reads the data file", "writes into the log", "reads the seed"} <= set(tried[node])


@pytest.mark.parametrize("rank", [pytest.param("0", marks=pytest.mark.exhaustive), "1"])
def test_who_trains_before_the_clock_finds_no_data_on_either_node(pair: Pair, rank: str) -> None:
    done = pair.run(trainer=CHEAT, CHEAT="trains before the clock", FAULT_RANK=rank)

    assert [each.code for each in done] == [4, 4], done
    assert f"ended before its clock started, and does not count: rank {rank} failed: " in (
        done[0].sentence
    )
    assert "PermissionError" in done[0].sentence
    pair.assert_settled()


def test_a_result_of_two_nodes_is_re_scored_with_the_weights_of_both(pair: Pair) -> None:
    plan = ("--division", "closed", "--plan", "pp=2,microbatches=2")
    started = [pair.start(node, *plan, trainer="hybridperf_reference") for node in (0, 1)]

    done = ended(*started)

    assert [each.code for each in done] == [0, 0], done
    assert pair.bench.rules_broken() == set()
    (log,) = map(read_log, pair.bench.out.rglob("result_0.txt"))
    handed_over = log.all(keys.WEIGHTS)
    values = [entry.value for entry in handed_over if isinstance(entry.value, dict)]
    assert {value["ranks"] for value in values} == {2}
    assert len(handed_over) == len(log.all(keys.EVAL_ACCURACY))
    assert log.value(keys.MODE) == "sandboxed"
    trust = judge_result(read_result(pair.bench.package)).trust
    assert trust.level == "re-scored", trust
    expected = " except of the network" if not why_no_namespaces() else "landlock ABI"
    assert expected in trust.evidence


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    spec = run_spec(tmp_path, trainer=CHEAT, seed=7, plan="dp=2")
    return dataclasses.replace(spec, nodes=2, rendezvous="127.0.0.1:1")


@pytest.fixture
def server(spec: RunSpec) -> Iterator[RankServer]:
    with served(spec) as server:
        yield server


def begun(server: RankServer, stack: contextlib.ExitStack) -> tuple[Channel, Start, Start]:
    """Return the channel of a rank of node 1 whose clock runs, and what both ranks got."""
    places = (server.address, server.remote_address)
    channels = [
        stack.enter_context(contextlib.closing(connect(place, rank)))
        for rank, place in enumerate(places)
    ]
    for channel in channels:
        assert isinstance(channel.receive(), Welcome)
        channel.send(Ready())
    here, there = (channel.receive() for channel in channels)
    assert isinstance(here, Start)
    assert isinstance(there, Start)
    for channel in channels:
        channel.send(Evaluate(STEPS))
    channels[0].send(Predictions(()))
    return channels[1], here, there


def test_samples_reach_another_node_on_the_clock_and_without_labels(server: RankServer) -> None:
    with contextlib.ExitStack() as stack:
        channel, here, there = begun(server, stack)
        channel.send(Predictions(((0, SAMPLES),), bytes(8 * SAMPLES) + b"weights", 7))
        assert isinstance(channel.receive(), EvaluationVerdict)

    assert dataclasses.replace(there, payload=b"") == here
    assert here.evaluation_inputs is not None
    inputs = here.evaluation_inputs
    # They are the last array.
    assert len(there.payload) - inputs.offset - math.prod(inputs.shape) < 64
    assert server.problem == ""


@pytest.mark.parametrize(
    ("size", "more", "problem"),
    [
        (8 * SAMPLES + 1, 0, f"{8 * SAMPLES + 1} bytes of weights in {8 * SAMPLES}"),
        (-1, 0, f"-1 bytes of weights in {8 * SAMPLES}"),
        (0, 7, f"{8 * SAMPLES + 7} bytes of predictions for {SAMPLES} samples"),
        (8, 0, f"{8 * SAMPLES - 8} bytes of predictions for {SAMPLES} samples"),
    ],
)
def test_weights_from_another_node_that_are_not_as_long_as_stated_end_the_run(
    server: RankServer, size: int, more: int, problem: str
) -> None:
    with contextlib.ExitStack() as stack:
        channel, _, _ = begun(server, stack)

        channel.send(Predictions(((0, SAMPLES),), bytes(8 * SAMPLES + more), size))

        wait_until(lambda: server.problem)
    assert server.problem == f"rank 1 sent {problem}"
