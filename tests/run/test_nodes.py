"""Two nodes: two ``hybridperf run`` with one folder and one rendezvous, as on two machines."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.local_ranks import reserve_port
from hybridperf.run.spec import NODE_VARIABLE
from tests.run.conftest import FAULTY, FORKS_WITH_TORCH, finished, limits, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.run.command_server import Command
    from tests.run.conftest import Bench, Finished


@dataclass
class Pair:
    """Node 0 and node 1 of a run of two ranks."""

    bench: Bench
    #: kept until the test ends: else another worker's process may get the port meanwhile
    reserved: socket.socket = field(default_factory=lambda: reserve_port(""))
    host: str = "127.0.0.1"

    @property
    def port(self) -> int:
        """Return the port of the rendezvous."""
        return int(self.reserved.getsockname()[1])

    def start(self, node: int, *arguments: str, **keywords: Any) -> Command:
        """Start one of the two."""
        where = (
            "--nodes",
            "2",
            "--node-rank",
            str(node),
            "--rendezvous",
            f"{self.host}:{self.port}",
        )
        keywords = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | keywords
        return self.bench.start("--plan", "dp=2", *where, *arguments, **keywords)

    def both(self, **keywords: Any) -> list[Command]:
        """Start both with the same command."""
        return [self.start(node, **keywords) for node in (0, 1)]

    def run(self, **keywords: Any) -> list[Finished]:
        """Carry both out."""
        return ended(*self.both(**keywords))

    def strike(self, fault: str, **keywords: Any) -> list[Finished]:
        """Carry both out with a fault of rank 1 that strikes once."""
        once = str(self.bench.note())
        return self.run(FAULT=fault, FAULT_RANK="1", FAULT_ONCE=once, **keywords)

    def hang(self) -> list[Command]:
        """Start both, and return while rank 1 hangs in the second epoch and rank 0 waits for it."""
        started = self.both(FAULT="hang", FAULT_RANK="1")
        self.bench.await_batches(42)
        assert all(map(self.ranks_of, (0, 1)))
        return started

    def listens(self) -> bool:
        """Tell whether node 0 is there."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ranks_of(self, node: int) -> list[psutil.Process]:
        """Return the processes that a node has started for some run."""
        found = []
        for process in self.bench.processes_left():
            with contextlib.suppress(psutil.Error, KeyError):
                if process.environ()[NODE_VARIABLE].split()[0] == str(node):
                    found.append(process)
        return found

    def assert_settled(self, *outcomes: str) -> None:
        """Attempts have ended so, and nothing is left on either node, nor between them."""
        self.bench.assert_settled()
        assert self.bench.outcomes() == list(outcomes)
        assert [path.name for path in self.bench.out.iterdir()] == ["local"]


def ended(*processes: Command) -> list[Finished]:
    return [finished(process) for process in processes]


@pytest.fixture
def pair(bench: Bench) -> Iterator[Pair]:
    bench.server = FORKS_WITH_TORCH
    pair = Pair(bench)
    with pair.reserved:
        yield pair


def saving(bench: Bench) -> None:
    """Have the task ask for checkpoints."""
    path: Path = bench.tasks / "resnet/laptop.toml"
    text = path.read_text().replace("every_epochs = 1", "every_epochs = 1\ncheckpoint = true")
    path.write_text(text)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_two_nodes_make_one_result_whichever_comes_first(pair: Pair, first: int) -> None:
    options = f"--plan dp=2 --runs 2 --trainer {FAULTY} --division open --nodes 2"
    early = pair.start(first, runs=2)
    time.sleep(1)
    done = ended(early, pair.start(1 - first, runs=2))

    assert [each.code for each in done] == [0, 0], done
    pair.assert_settled("success", "success")
    assert pair.bench.rules_broken() == set()
    assert pair.bench.package.system.startswith("2nodes-")
    (system,) = pair.bench.out.rglob("systems/*.json")
    assert '"number_of_nodes": "2"' in system.read_text()
    assert {manifest["command"] for manifest in pair.bench.manifests()} == {
        f"hybridperf run resnet/laptop {options}"
    }
    assert [each.code for each in pair.run(runs=2)] == [0, 0]  # complete: nothing runs again
    pair.assert_settled("success", "success")


def test_the_reference_trainer_trains_on_two_nodes(pair: Pair) -> None:
    pair.bench.server = None
    pair.bench.change_task(epochs=2, width=4)  # the target is further away: the run ends there

    done = pair.run(trainer="hybridperf_reference", quick=False)

    assert [each.code for each in done] == [1, 1], done
    pair.assert_settled("target_missed")
    assert pair.bench.rules_broken() <= {"result.target", "result.missed"}
    (log,) = map(read_log, pair.bench.out.rglob("result_0.txt"))
    assert len(log.all(keys.EVAL_ACCURACY)) == 2


@pytest.mark.parametrize(
    ("fault", "quick", "reason"),
    [
        ("kill", False, "rank 1 was killed by SIGKILL"),
        (
            "raise",
            True,
            "the trainer failed: tests.trainers.faulty.faults.Boom: the loss is not a ",
        ),
    ],
)
def test_a_rank_that_fails_on_another_node_ends_the_run(
    pair: Pair, fault: str, quick: bool, reason: str
) -> None:
    done = pair.strike(fault, quick=quick)

    assert [each.code for each in done] == [4, 4], done
    assert f"is sealed as crashed: {reason}" in done[0].sentence
    assert done[1].sentence.startswith("hybridperf: node 0: attempt 0 in ")
    pair.assert_settled("crashed")
    (output,) = pair.bench.out.rglob(".output_0.txt")
    assert "--- node 1 ---" in output.read_text()
    # Under torchrun, each run listens anew at the port that the one before has left.
    assert [each.code for each in pair.run(runs=2, quick=quick)] == [0, 0]
    pair.assert_settled("crashed", "success", "success")
    crashed, again, _ = pair.bench.manifests()
    assert crashed["seed"] == again["seed"]


def test_a_killed_node_is_missed(pair: Pair) -> None:
    first, other = pair.hang()

    other.kill()

    wait_until(lambda: not pair.ranks_of(1))
    (done,) = ended(first)
    assert done.code == 4
    assert "is sealed as crashed: node 1 was lost; what the ranks printed is in " in done.sentence
    pair.assert_settled("crashed")


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_killed_node_0_is_missed_and_the_same_commands_go_on(
    pair: Pair, checkpoints: bool
) -> None:
    if checkpoints:
        saving(pair.bench)
    first, other = pair.hang()

    first.kill()
    wait_until(lambda: first.poll() is not None)  # until then it listens at the port
    again = pair.both()  # at once: node 1 of before may not know yet

    (done,) = ended(other)
    assert done.code == 4
    assert done.sentence == (
        "hybridperf: node 0 was lost; give the same command again on every node to continue."
    )
    done, _ = both = ended(*again)
    assert [each.code for each in both] == [0, 0], both
    pair.assert_settled(*(["success"] if checkpoints else ["interrupted", "success"]))
    logs = [read_log(path) for path in pair.bench.out.rglob("result_*.txt")]
    assert sum(len(log.all(keys.RESUMED)) for log in logs) == checkpoints


@pytest.mark.parametrize("told", [(1,), (0, 1)])
def test_a_signal_to_any_node_seals_the_attempt_as_interrupted(
    pair: Pair, told: tuple[int, ...]
) -> None:
    started = pair.hang()

    for node in told:
        started[node].send_signal(signal.SIGINT)

    done = ended(*started)
    assert [each.code for each in done] == [5, 5], done
    expected = r"is sealed as interrupted: stopped by SIGINT( on node 1)?; give the same command"
    assert re.search(expected, done[0].sentence)
    pair.assert_settled("interrupted")


@pytest.mark.parametrize(
    ("arguments", "variables", "found"),
    [
        (("--set", "optimizer.lr=0.05"), {}, "found {'optimizer.lr': 0.05}; give every node the"),
        ((), {"CODE": "1"}, "expected trainer_sha256 000000"),
        ((), {"PROCESSOR": "Z80"}, "found Z80; choose nodes of one kind"),
        (
            ("--trainer", "nope"),
            {},
            "node 1: expected a package with the modules train and predict",
        ),
    ],
    ids=["order", "code", "hardware", "trainer"],
)
def test_nodes_that_differ_are_refused_before_anything_runs(
    pair: Pair, arguments: tuple[str, ...], variables: dict[str, str], found: str
) -> None:
    done = ended(pair.start(0), pair.start(1, *arguments, **variables))

    assert [each.code for each in done] == [2, 2], done
    assert found in done[0].sentence
    assert done[0].sentence.removeprefix("hybridperf: node 1: ") in done[1].sentence or (
        done[0].sentence.removeprefix("hybridperf: ") in done[1].sentence
    )
    assert not list(pair.bench.out.rglob("systems/*.json"))


@pytest.mark.parametrize(
    ("present", "absent"), [(0, "no answer from node 1"), (1, "nothing that answers there")]
)
def test_a_node_waits_only_so_long(pair: Pair, present: int, absent: str) -> None:
    (done,) = ended(pair.start(present, **limits(initialisation_s=1)))

    assert done.code == 4
    assert f"within 1 s, found {absent}; give the same command on " in done.sentence
    assert pair.bench.outcomes() == []


def test_a_rendezvous_has_one_node_0(pair: Pair) -> None:
    first = pair.start(0)
    wait_until(pair.listens)

    (second,) = ended(pair.start(0))

    assert second.code == 4
    expected = "expected a free port on node 0 in --rendezvous, found "
    assert f"{expected}{pair.port}, one that another run or program listens at" in second.sentence
    assert [each.code for each in ended(first, pair.start(1))] == [0, 0]
    pair.assert_settled("success")


def test_a_rendezvous_may_be_an_ipv6_address(pair: Pair) -> None:
    pair.host = "[::1]"
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")

    assert [each.code for each in pair.run()] == [0, 0]
    pair.assert_settled("success")
    (manifest,) = pair.bench.manifests()
    assert manifest["nodes"] == [{}]  # the other node differs in nothing


def test_nodes_that_do_not_share_a_folder_are_refused_before_anything_runs(pair: Pair) -> None:
    elsewhere = pair.bench.out.with_name("elsewhere")

    done = ended(pair.start(0), pair.start(1, "--out", str(elsewhere), SHARED_S="1"))

    assert [each.code for each in done] == [4, 4], done
    expected = "expected --out on storage that all nodes share, found nothing of node 0 in it on "
    assert f"{expected}node 1" in done[0].sentence
    assert f"{expected}node 1" in done[1].sentence
    assert pair.bench.outcomes() == []
    assert not list(pair.bench.out.rglob(".nodes"))
