"""What nodes say to each other before anything runs; the other nodes are threads here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.run import node_follower, nodes
from hybridperf.run.channel import NodeFacts
from hybridperf.run.ending import StopRequest
from hybridperf.run.local_ranks import reserve_port
from hybridperf.run.node_follower import take_part
from hybridperf.run.nodes import Nodes, NodeServer, first_difference, gather_nodes
from hybridperf.tasks.registry import read_task, resolve_task
from tests.run.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.tasks.task import Task

ORDER: dict[str, object] = {"nodes": 2, "plan": "dp=2"}
HARDWARE: dict[str, object] = {
    "accelerators_per_node": "8",
    "accelerator_model_name": "H200",
    "accelerator_memory_capacity": "141 GB",
    "host_processor_model_name": "Z80",
    "framework": "PyTorch 2.11",
}


@pytest.mark.parametrize(
    ("order", "hardware", "sentence"),
    [
        ({}, {}, ""),
        (
            {"plan": "dp=1,pp=2"},
            {"framework": "PyTorch 2.15"},
            "expected plan dp=2 on node 1 as on node 0, found dp=1,pp=2; give every node the same",
        ),
        (
            {},
            {"framework": "PyTorch 2.15"},
            "expected framework PyTorch 2.11 on node 1 as on node 0, found PyTorch 2.15; choose",
        ),
        (
            {},
            {"accelerator_model_name": ""},
            "expected accelerator_model_name H200 on node 1 as on node 0, found nothing; choose",
        ),
    ],
)
def test_the_first_difference_is_named(
    order: dict[str, object], hardware: dict[str, object], sentence: str
) -> None:
    found = first_difference(
        NodeFacts(ORDER, HARDWARE), NodeFacts(ORDER | order, HARDWARE | hardware), 1
    )

    assert (found is not None) == bool(sentence)
    assert found is None or found.sentence.startswith(sentence)


class Node(threading.Thread):
    """Another node of three, which cannot take part if it has a ``problem``."""

    def __init__(self, rank: int, rendezvous: str, out: Path, problem: str = "") -> None:
        super().__init__(daemon=True)
        self.end: tuple[ExitCode, str] | None = None
        self._nodes, self._out, self._problem = Nodes(3, rank, rendezvous), out, problem

    def run(self) -> None:
        try:
            self.end = take_part(self._nodes, self._out, self._check), ""
        except UserError as error:
            self.end = error.exit_code, str(error)

    def _check(self) -> tuple[Task, NodeFacts]:
        if self._problem:
            raise UserError(self._problem, ExitCode.ENVIRONMENT)
        return read_task(resolve_task("resnet/laptop")), NodeFacts(ORDER, HARDWARE)


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in (nodes, node_follower):
        monkeypatch.setattr(module, "LOST_S", 3600)  # this machine may be busy
    with reserve_port("") as reserved:
        yield f"localhost:{reserved.getsockname()[1]}"


def gather(rendezvous: str, out: Path) -> NodeServer:
    """Wait as node 0 for two other nodes, and dismiss them."""
    task = read_task(resolve_task("resnet/laptop"))
    with gather_nodes(Nodes(3, 0, rendezvous), out) as server:
        server.preflight(NodeFacts(ORDER, HARDWARE), task, StopRequest())
    return server


def test_a_node_that_comes_twice_is_refused(rendezvous: str, tmp_path: Path) -> None:
    twice = [Node(1, rendezvous, tmp_path) for _ in range(2)]
    last = Node(2, rendezvous, tmp_path)

    def come() -> None:
        for each in twice:
            each.start()
        wait_until(lambda: twice[0].end or twice[1].end)
        last.start()

    threading.Thread(target=come).start()
    server = gather(rendezvous, tmp_path)

    wait_until(lambda: twice[0].end and twice[1].end and last.end)
    first, second = sorted(each.end for each in twice if each.end)
    assert first == last.end == (ExitCode.OK, "")
    assert second[0] == ExitCode.ENVIRONMENT
    assert second[1].startswith("node 0: expected every node once at this rendezvous, found one ")
    assert server.differences == [{}, {}]
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_cannot_take_part_ends_all(rendezvous: str, tmp_path: Path) -> None:
    first, last = Node(1, rendezvous, tmp_path, "no data."), Node(2, rendezvous, tmp_path)

    def come() -> None:
        first.start()
        wait_until(lambda: first.end)
        last.start()

    threading.Thread(target=come).start()
    with pytest.raises(UserError, match=r"^node 1: no data\.$") as refusal:
        gather(rendezvous, tmp_path)

    wait_until(lambda: last.end)
    assert refusal.value.exit_code == ExitCode.ENVIRONMENT
    assert first.end == (ExitCode.ENVIRONMENT, "no data.")
    assert last.end == (ExitCode.ENVIRONMENT, "node 0: node 1: no data.")
