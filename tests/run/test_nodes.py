"""Two nodes: two ``hybridperf run`` with one folder and one rendezvous, as on two machines."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.channel import (
    FROM_NODE_0,
    ChannelError,
    Greeting,
    JoinNode,
    Leave,
    open_channel,
)
from hybridperf.run.sandbox import mode_of
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import find_task
from tests.run.conftest import FAULTY, limits, wait_until
from tests.run.pair import Pair, ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.run.conftest import Bench

Image = pytest.importorskip("PIL.Image", reason="Pillow, which writes the images, is not here")


@pytest.fixture
def pair(bench: Bench) -> Iterator[Pair]:
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
    pair.host = "[::1]" if has_ipv6() else pair.host
    early = pair.start(first, runs=2)
    if first == 0:
        assert_no_other_joins(pair)
    else:
        time.sleep(1)
    done = ended(early, pair.start(1 - first, runs=2))

    assert [each.code for each in done] == [0, 0], done
    pair.assert_settled("success", "success")
    assert pair.bench.rules_broken() == set()
    assert pair.bench.package.system.startswith("2nodes-")
    (system,) = pair.bench.out.rglob("systems/*.json")
    assert '"number_of_nodes": "2"' in system.read_text()
    for path in pair.bench.out.rglob("result_*.txt"):
        log = read_log(path)
        epochs = [entry.metadata["epoch_num"] for entry in log.all(keys.EVAL_ACCURACY)]
        logged = [entry.metadata for entry in log.all(keys.ENERGY)]
        assert [(each["node"], each["nodes"], each["epoch_num"]) for each in logged] == [
            (node, 2, epoch) for node in (0, 1) for epoch in epochs
        ]
    for manifest in pair.bench.manifests():
        assert manifest["command"] == f"hybridperf run resnet/laptop {options}"
        assert manifest["nodes"] == [{}]  # the other node differs in nothing
    assert [each.code for each in pair.run(runs=2)] == [0, 0]  # complete: nothing runs again
    pair.assert_settled("success", "success")


def has_ipv6() -> bool:
    """Tell whether this machine has IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def assert_no_other_joins(pair: Pair) -> None:
    """Node 0 waits for node 1: nobody takes its port, or joins without the token."""
    wait_until(pair.listens)
    (second,) = ended(pair.start(0))
    assert second.code == 4
    expected = "expected a free port on node 0 in --rendezvous, found "
    assert f"{expected}{pair.port}, one that another run or program listens at" in second.sentence
    for said in (JoinNode(1, "a guess"), JoinNode(7, ""), Leave("", 0), None):
        with contextlib.closing(open_channel(f"{pair.host}:{pair.port}", FROM_NODE_0)) as channel:
            assert isinstance(channel.receive(), Greeting)
            if said is None:
                os.write(channel.fileno(), b"GET / HTTP/1.1\r\n\r\n")
            else:
                channel.send(said)
            with pytest.raises(ChannelError, match="the other end is gone"):
                channel.receive()
    (token,) = pair.bench.out.glob(".rendezvous_*")
    assert token.stat().st_mode & 0o777 == 0o600


def test_the_reference_trainer_trains_on_two_nodes(pair: Pair) -> None:
    pair.bench.server = None
    pair.bench.change_task(epochs=2, width=4)  # the target is further away: the run ends there

    done = pair.run(trainer="hybridperf_reference")

    assert [each.code for each in done] == [1, 1], done
    pair.assert_settled("target_missed")
    assert pair.bench.rules_broken() <= {"result.target", "result.missed"}
    (log,) = map(read_log, pair.bench.out.rglob("result_0.txt"))
    assert len(log.all(keys.EVAL_ACCURACY)) == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("kill", "rank 1 was killed by SIGKILL"),
        ("raise", "rank 1 failed: tests.trainers.faulty.faults.Boom: the loss is not a "),
    ],
)
def test_a_rank_that_fails_on_another_node_ends_the_run(
    pair: Pair, fault: str, reason: str
) -> None:
    done = pair.strike(fault)

    assert [each.code for each in done] == [4, 4], done
    assert f"is sealed as crashed: {reason}" in done[0].sentence
    assert done[1].sentence.startswith("hybridperf: node 0: attempt 0 in ")
    pair.assert_settled("crashed")
    (output,) = pair.bench.out.rglob(".output_0.txt")
    assert "--- node 1 ---" in output.read_text()
    if fault == "raise":
        assert [each.code for each in pair.run()] == [0, 0]
        pair.assert_settled("crashed", "success")
        crashed, again = pair.bench.manifests()
        assert crashed["seed"] == again["seed"]


def test_a_killed_node_is_missed_by_every_other(pair: Pair) -> None:
    first, other = pair.hang()

    first.kill()

    (done,) = ended(other)
    assert done.code == 4
    assert done.sentence == (
        "hybridperf: node 0 was lost; give the same command again on every node to continue."
    )
    first, other = pair.hang()

    other.kill()

    wait_until(lambda: not pair.ranks_of(1))
    (done,) = ended(first)
    assert done.code == 4
    assert "is sealed as crashed: node 1 was lost; the output of the ranks is in " in done.sentence
    pair.assert_settled("interrupted", "crashed")


def test_the_same_commands_go_on_from_a_checkpoint(pair: Pair) -> None:
    saving(pair.bench)
    first, other = pair.hang()

    first.kill()
    wait_until(lambda: first.poll() is not None)  # until then it listens at the port
    again = pair.both()  # at once: node 1 of before may not know yet

    assert [each.code for each in ended(other, *again)] == [4, 0, 0]
    pair.assert_settled("success")
    (log,) = map(read_log, pair.bench.out.rglob("result_*.txt"))
    assert len(log.all(keys.RESUMED)) == 1


@pytest.mark.exhaustive
def test_a_machine_that_stops_is_missed_by_every_other(pair: Pair) -> None:
    with cable() as (pair.host, starters, pull):
        started = pair.hang(starters=starters, LOST_S="4")
        pull()
        done = ended(*started)

    assert [each.code for each in done] == [4, 4], done
    assert "is sealed as crashed: node 1 was lost" in done[0].sentence
    assert "node 0 was lost" in done[1].sentence
    pair.assert_settled("crashed")


@contextlib.contextmanager
def cable() -> Iterator[tuple[str, list[tuple[str, ...]], Callable[[], None]]]:
    """Connect two namespaces of the network, as two machines.

    Yields the address of the first, what starts a command in each, and what pulls the plug.
    """

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    ends = [f"hp{os.getpid()}{end}" for end in "ab"]
    try:
        for name in ends:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces of the network take ip(8) and the rights of root")
    try:
        ip("-n", ends[0], "link", "add", "cable", "type", "veth", "peer", "cable", "netns", ends[1])
        for number, name in enumerate(ends, 1):
            ip("-n", name, "address", "add", f"192.0.2.{number}/30", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        starters: list[tuple[str, ...]] = [("ip", "netns", "exec", name) for name in ends]
        yield "192.0.2.1", starters, lambda: ip("-n", ends[1], "link", "set", "cable", "down")
    finally:
        for name in ends:
            ip("netns", "del", name)


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
        ((), {"CODE": "1"}, "expected trainer_sha256 000000"),
        (
            ("--trainer", "nope"),
            {},
            "node 1: expected a package with the modules train and predict",
        ),
    ],
    ids=["code", "trainer"],
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


DATA = """[data]
name = "cifar10"
source = "a few images"
sha256 = ""
split = "as folders say"
train_samples = 128
eval_samples = 2
editions = {}

"""


@pytest.mark.parametrize("mode", ["sandboxed", "open"])
def test_only_node_0_needs_data_that_it_hands_over(pair: Pair, tmp_path: Path, mode: str) -> None:
    if mode_of(find_task("resnet/laptop"), "sandboxed") == "open":
        pytest.skip("the kernel has no Landlock, so ranks read the data")
    path: Path = pair.bench.tasks / "resnet/laptop.toml"
    path.write_text(re.sub(r"(?s)\[data\].*?(?=\[quality\])", DATA, path.read_text()))
    for number, name in enumerate(("ape", "bee")):
        for part, count in (("train", 64), ("val", 1)):
            (folder := tmp_path / "data" / part / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (32, 32), (100 * number + index, 0, 0))
                image.save(folder / f"{index}.png")

    done = ended(
        pair.start(0, "--mode", mode, **{DATA_VARIABLE: str(tmp_path / "data")}),
        pair.start(1, "--mode", mode, **{DATA_VARIABLE: ""}),
    )

    if mode == "open":
        assert [each.code for each in done] == [4, 4], done
        assert "node 1: data set cifar10: expected a folder with a few images" in done[0].sentence
    else:
        assert [each.code for each in done] == [0, 0], done
        pair.assert_settled("success")


@pytest.mark.parametrize("refused", [0, 1])
def test_a_node_that_is_refused_tells_one_that_comes_later(pair: Pair, refused: int) -> None:
    early = pair.start(refused, "--trainer", "nope", LOST_S="3600")
    time.sleep(1)
    assert early.poll() is None

    done = ended(early, pair.start(1 - refused))

    assert [each.code for each in done] == [2, 2]
    sentence = "expected a package with the modules train and predict, found 'nope'; name one with"
    assert done[0].sentence.startswith(f"hybridperf: {sentence}")
    assert done[1].sentence.startswith(f"hybridperf: node {refused}: {sentence}")


@pytest.mark.parametrize(
    ("present", "absent"), [(0, "no answer from node 1"), (1, "nothing that answers there")]
)
def test_a_node_waits_only_so_long(pair: Pair, present: int, absent: str) -> None:
    (done,) = ended(pair.start(present, **limits(initialisation_s=1)))

    assert done.code == 4
    assert f"within 1 s, found {absent}; give the same command on " in done.sentence
    assert pair.bench.outcomes() == []


def test_nodes_that_do_not_share_a_folder_are_refused_before_anything_runs(pair: Pair) -> None:
    elsewhere = pair.bench.out.with_name("elsewhere")

    done = ended(pair.start(0), pair.start(1, "--out", str(elsewhere), SHARED_S="1"))

    assert [each.code for each in done] == [4, 4], done
    expected = "expected --out on storage that all nodes share, found nothing of node 0 in it on "
    assert f"{expected}node 1" in done[0].sentence
    assert f"{expected}node 1" in done[1].sentence
    assert pair.bench.outcomes() == []
    assert not list(pair.bench.out.glob(".rendezvous_*"))
