"""``--nodes``, ``--node-rank``, ``--rendezvous``: what does not go together is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.run import node_follower, nodes
from hybridperf.run.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished

HERE = ("--rendezvous", "node0:29500")


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no other node, and wait for none."""
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    monkeypatch.setattr(node_follower, "LOST_S", 0)
    monkeypatch.setattr(nodes, "LOST_S", 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--node-rank", "0"), "expected --nodes N, found --node-rank alone; add --nodes or drop"),
        (HERE, "expected --nodes N, found --rendezvous alone; add --nodes or drop"),
        (("--nodes", "0"), "expected a whole number from 1 to 1000, found '0'"),
        (
            ("--nodes", "2", *HERE),
            "expected --node-rank or the variable SLURM_NODEID, found neither",
        ),
        (("--nodes", "2", "--node-rank", "2", *HERE), "a --node-rank from 0 to 1, found '2'"),
        (("--nodes", "2", "--node-rank=-1", *HERE), "a --node-rank from 0 to 1, found '-1'"),
        (("--nodes", "1", "--node-rank", "1"), "a --node-rank from 0 to 0, found '1'"),
        (("--nodes", "2", "--node-rank", "0"), "--rendezvous HOST:PORT with more than one node"),
        (
            ("--nodes", "2", "--node-rank", "0", "--rendezvous", "node0"),
            "expected --rendezvous HOST:PORT, found 'node0'; name node 0 and a port that is free",
        ),
        (
            ("--nodes", "2", "--node-rank", "0", "--rendezvous", "../a:1"),
            "expected --rendezvous HOST:PORT, found '../a:1'",
        ),
        (
            ("--nodes", "2", "--node-rank", "0", "--rendezvous", "fd00::1:29500"),
            "found 'fd00::1:29500'; write an IPv6 address in brackets, as in [fd00::1]:29500",
        ),
        (
            ("--nodes", "2", "--node-rank", "0", "--rendezvous", "node0:65536"),
            "expected a port from 1 to 65535, found '65536'",
        ),
        (
            ("--nodes", "2", "--node-rank", "0", *HERE),
            "expected a plan whose ranks 2 nodes share equally, found dp=1 of 1; change the plan",
        ),
    ],
)
def test_what_does_not_go_together_is_said_in_one_sentence(
    hybridperf: Callable[..., Finished], tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    done = hybridperf("run", "resnet/laptop", "--out", str(tmp_path / "out"), *options)

    assert done.code == 2
    assert sentence in done.sentence
    assert done.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.json"))


def test_slurm_says_which_node_this_is(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NODEID", "3")
    assert Nodes.named(4, None, "node0:29500") == Nodes(4, 3, "node0:29500")
    assert Nodes.named(4, "1", "node0:29500") == Nodes(4, 1, "node0:29500")
    assert Nodes.named(None, None, None) == Nodes.named(1, None, "node0:29500") == Nodes()
    done = hybridperf("run", "resnet/laptop", "--nodes", "2", *HERE)
    assert done.code == 2
    assert "expected a SLURM_NODEID from 0 to 1, found '3'" in done.sentence
