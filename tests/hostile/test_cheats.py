"""Cheats of a trainer under an honest operator, on a kernel with Landlock: none counts.

Each stops below *re-scored*, most of them there: by the sandbox, by the harness's own count, by the
rescoring, or because it lacks weights that were handed over on the clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import py_compile
import secrets
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from hybridperf.log import keys
from hybridperf.log.package import read_result
from hybridperf.log.reader import read_log
from hybridperf.rules.check import judge_result
from hybridperf.run.access import seal_bytes
from hybridperf.run.channel import (
    Channel,
    ChannelError,
    Describe,
    Evaluate,
    Predictions,
    Ready,
    Refusal,
    Saved,
    Start,
    Track,
    Welcome,
    connect,
)
from hybridperf.run.profiles import ask_trainer
from hybridperf.run.rank_server import RankServer
from hybridperf.system.landlock import landlock_abi
from hybridperf.system.namespaces import why_no_namespaces
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task, read_task, task_path
from tests.run.conftest import ROOT, Bench, bench, wait_until
from tests.run.served import served
from tests.run_spec import run_spec
from tests.trainers.cheat.attempts import ATTEMPTS, HIDDEN, LEFT, WHISPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.run.spec import RunSpec

__all__ = ["bench"]  # a fixture

CHEAT = "tests.trainers.cheat"
PRETENDER = "tests.trainers.pretender"
TASK = find_task("resnet/laptop")
SAMPLES = TASK.data.eval_samples
STEPS = len(TASK.steps(TASK.blocks()[0]))  #: of the first block
pytestmark = pytest.mark.skipif(
    landlock_abi() < 6, reason="needs Landlock with its scopes (Linux 6.12)"
)


class Tried(NamedTuple):
    """What became of every attempt."""

    stopped_by: dict[str, str]  #: name of the exception by attempt; ``""`` where none
    reached: dict[str, bool]  #: by attempt to tell somebody else: whether it did


@contextlib.contextmanager
def daemon(place: Path) -> Iterator[None]:
    """Hand labels over to whoever connects to the socket ``place``, from a process of its own."""
    serve = "import socket, sys; server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[1])"
    serve += (
        "; server.listen(); print(flush=True)\nwhile True: server.accept()[0].sendall(b'labels')"
    )
    command = [sys.executable, "-c", serve, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        place.chmod(0o777)
        try:
            yield
        finally:
            process.kill()
    shutil.rmtree(place.parent)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Make every attempt on the clock of a run beside a sealed one."""
    folder = tmp_path_factory.mktemp("cheat")
    bench = Bench(folder / "out", ROOT / "suite/hybridperf/tasks")
    note, name = bench.note(), f"hybridperf_{secrets.token_hex(8)}"
    place = Path(tempfile.mkdtemp()) / "daemon"  # short enough for a socket
    with (
        daemon(place),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(server.getsockname())
        datagrams.setblocking(False)
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = str(server.getsockname()[1])
        assert bench.run(trainer=CHEAT, CHEAT="nothing").code == 0
        done = bench.run(
            trainer=CHEAT,
            runs=2,
            CHEAT="tries everything",
            CHEAT_PORT=port,
            CHEAT_NAME=name,
            CHEAT_SOCKET=str(place),
            FAULT_ONCE=str(note),
        )
        assert done.code == 0, done
        told = bool(select.select([datagrams], [], [], 0)[0])
    bench.assert_settled()
    assert bench.outcomes() == ["success", "success"]
    reached = {"leaves something in shared memory": LEFT.exists(), "sends a datagram": told}
    LEFT.unlink(missing_ok=True)
    return Tried(json.loads(note.read_text()), reached)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_the_sandbox_forbids_fails(tried: Tried, name: str) -> None:
    # Links across the border fail as those across devices do; in its own network nobody listens.
    refused = {"PermissionError", "CalledProcessError", "OSError", "ConnectionRefusedError"}
    refused |= set() if why_no_namespaces() else {"FileNotFoundError"}  # it sees no other file
    assert tried.stopped_by[name] in refused, tried.stopped_by[name]


@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_or_cannot_be_changed_fails(tried: Tried, name: str) -> None:
    # of files that are read-only and those that are not there
    assert tried.stopped_by[name] in {"OSError", "FileNotFoundError"}, tried.stopped_by[name]


@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
@pytest.mark.parametrize("name", WHISPERS)
def test_what_a_trainer_whispers_reaches_nobody(tried: Tried, name: str) -> None:
    assert tried.stopped_by[name] == ""
    assert not tried.reached[name]


@pytest.mark.parametrize(
    ("cheat", "code", "reason"),
    [
        ("predicts the labels that it brought", 3, "the quality did not come back"),
        ("predicts from the data set", 3, "PermissionError"),
        ("changes the weights while it predicts", 3, "part_0.safetensors'"),
        ("writes the log while it predicts", 3, "log.txt'"),
        ("trains after the clock", 3, "the quality did not come back"),
        ("saves another model", 3, "% of the predictions differ from the last evaluation"),
        ("stops after one epoch", 4, "report() takes one prediction for every sample"),
        ("a pipe for weights", 4, "the trainer replaced work/weights/part_0.safetensors"),
    ],
)
def test_a_model_that_is_not_the_one_evaluated_on_the_clock_does_not_count(
    bench: Bench, cheat: str, code: int, reason: str
) -> None:
    labels = ROOT / "tests/trainers/cheat/labels.npy"
    if "brought" in cheat:
        np.save(labels, load(find_task("resnet/laptop").data).evaluation.labels)
    if cheat == "saves another model":  # which is about as good
        path = bench.tasks / "resnet/laptop.toml"
        text = path.read_text().replace(
            "rescoring_tolerance = 0.0034", "rescoring_tolerance = 0.02"
        )
        path.write_text(text.replace("target = 0.98", "target = 0.9"))
    try:
        done = bench.run(trainer=CHEAT, CHEAT=cheat)
    finally:
        labels.unlink(missing_ok=True)

    assert done.code == code
    assert reason in done.sentence
    bench.assert_settled()
    assert bench.outcomes() == ["refused" if code == 3 else "crashed"]


def test_a_model_that_is_fitted_to_the_answers_after_the_clock_stops_below_re_scored(
    bench: Bench,
) -> None:
    """It predicts all that was predicted on the clock, and no weights were handed over there."""
    done = bench.run("--division", "closed", trainer=PRETENDER, CHEAT="fits after the clock")

    assert done.code == 0, done
    assert bench.rules_broken() == set()
    trust = judge_result(read_result(bench.package)).trust
    assert trust.level == "chained"
    assert "the weights that predicted last, handed over before the verdict" in trust.lacks


def test_a_trainer_that_takes_no_step_has_not_the_processor_time_of_any(bench: Bench) -> None:
    """It idles, while one that keeps a core busy is told from training by its models alone."""
    cheat = "fits after the clock, and is idle on it"

    done = bench.run("--division", "closed", trainer=PRETENDER, CHEAT=cheat)

    assert done.code == 3, done
    assert bench.rules_broken() == {"result.plausible"}
    assert "s of processor time or more, for 1184 samples" in done.out


def test_weights_handed_over_on_the_clock_are_what_is_scored(bench: Bench) -> None:
    """Whatever the trainer writes later is replaced by them."""
    cheat = "hands over another model, and fits after the clock"

    done = bench.run("--division", "closed", trainer=PRETENDER, CHEAT=cheat)

    assert done.code == 3
    assert "the quality did not come back" in done.sentence
    assert bench.outcomes() == ["refused"]


def test_answers_of_an_earlier_evaluation_are_its_model_s(bench: Bench) -> None:
    """The last model is what it should be; that of some evaluation before is scored too."""
    done = bench.run(trainer=PRETENDER, CHEAT="remembers, and makes up answers before")

    assert done.code == 3
    assert "of the model of epoch " in done.sentence
    assert "which was drawn after the run" in done.sentence
    assert bench.outcomes() == ["refused"]


def test_a_trainer_that_hands_its_models_over_counts(bench: Bench) -> None:
    done = bench.run(trainer=PRETENDER, CHEAT="remembers")

    assert done.code == 0, done
    (manifest,) = bench.manifests()
    earlier = manifest["rescoring"]["earlier"]
    assert earlier["reported"] == earlier["quality"] < TASK.quality.target
    (path,) = bench.out.rglob("result_0.txt")
    log = read_log(path)
    evaluated = [entry.metadata["epoch_num"] for entry in log.all(keys.EVAL_ACCURACY)]
    handed_over = [entry.metadata["epoch_num"] for entry in log.all(keys.WEIGHTS)]
    assert handed_over == evaluated
    assert earlier["epoch"] in evaluated[:-1]
    bench.assert_settled()


@pytest.mark.parametrize(("module", "ranks"), [("units", 1), ("profile", 1), ("profile", 2)])
def test_a_trainer_that_is_asked_about_a_task_answers_from_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, ranks: int
) -> None:
    own, private = tmp_path / "task.toml", tmp_path / "private"
    text = task_path("resnet/laptop").read_text()
    own.write_text(text.replace('trainer = "hybridperf_reference"', f'trainer = "{CHEAT}"'))
    private.write_text("nobody else's business")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")

    found = ask_trainer(read_task(own), module, own, ranks=ranks)

    assert {name for name, stopped_by in found.items() if not stopped_by} == (
        {"mode"} if why_no_namespaces() else set()
    )
    assert len(found) == 5
    assert private.read_text() == "nobody else's business"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["private", "task.toml"]


@pytest.mark.parametrize("mode", ["sandboxed", "open"])
def test_compiled_code_that_is_not_its_source_s_does_not_run(
    bench: Bench, tmp_path: Path, mode: str
) -> None:
    doped = tmp_path / "modules/doped"
    shutil.copytree(ROOT / "tests/trainers/nearest", doped)
    for path in doped.glob("*.py"):
        path.write_text(path.read_text().replace("tests.trainers.nearest", "doped"))
    memory = doped / "memory.py"
    source = memory.read_text()
    memory.write_text("raise SystemExit('other code')".ljust(len(source)))
    os.utime(memory, (1, 1))
    py_compile.compile(str(memory))
    memory.write_text(source)
    os.utime(memory, (1, 1))
    bench.server = None

    done = bench.run("--mode", mode, trainer="doped", PYTHONPATH=f"{ROOT}:{doped.parent}")

    assert done.code == 0, done
    assert bench.outcomes() == ["success"]


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return run_spec(tmp_path, trainer=CHEAT, seed=7)


@pytest.fixture
def server(spec: RunSpec) -> Iterator[RankServer]:
    with served(spec) as server:
        yield server
    while CHANNELS:
        CHANNELS.pop().close()


CHANNELS: list[Channel] = []  #: to be closed


def joined(address: str, rank: int = 0) -> Channel:
    """Join as ``rank``."""
    CHANNELS.append(connect(address, rank))
    return CHANNELS[-1]


def begun(server: RankServer) -> Channel:
    """Return the channel of a rank whose clock runs."""
    channel = joined(server.address)
    assert isinstance(channel.receive(), Welcome)
    channel.send(Ready())
    assert isinstance(channel.receive(), Start)
    return channel


def whole(classes: int = SAMPLES) -> Predictions:
    return Predictions(((0, SAMPLES),), bytes(8 * classes))


BEFORE_THE_START: Any = [Predictions(()), Evaluate(STEPS), Track({"loss": 0}), Saved()]
BEFORE_THE_EVALUATION: Any = [Saved(), Ready(), whole()]


@pytest.mark.parametrize("message", BEFORE_THE_START, ids=lambda message: type(message).__name__)
def test_what_comes_before_the_clock_starts_is_refused(server: RankServer, message: Any) -> None:
    channel = joined(server.address)
    channel.receive()

    channel.send(message)

    assert isinstance(channel.receive(), Refusal)


@pytest.mark.parametrize(
    "message", BEFORE_THE_EVALUATION, ids=lambda message: type(message).__name__
)
def test_what_comes_before_the_evaluation_is_refused(server: RankServer, message: Any) -> None:
    channel = begun(server)

    channel.send(message)

    assert isinstance(channel.receive(), Refusal)


def test_a_second_evaluation_without_training_is_refused(server: RankServer) -> None:
    channel = begun(server)
    channel.send(Evaluate(STEPS))
    channel.send(Evaluate(STEPS))

    answer = channel.receive()

    assert answer == Refusal("Evaluate while evaluating")


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1, 0, -1])
def test_other_steps_than_the_schedule_s_are_refused_in_the_closed_division(
    server: RankServer, spec: RunSpec, steps: int
) -> None:
    channel = begun(server)

    channel.send(Evaluate(steps))

    said = f"Evaluate after {steps} steps up to epoch 1, where the schedule has {STEPS}"
    assert channel.receive() == Refusal(f"{said}: the open division allows that")
    channel.send(whole())
    assert channel.receive() == Refusal("Predictions while training")
    assert not read_log(spec.log).all(keys.EVAL_ACCURACY)


def test_the_log_of_an_open_run_says_how_many_steps_it_left_out(bench: Bench) -> None:
    assert bench.run(trainer=CHEAT, CHEAT="trains on half of the batches").code == 0

    (log,) = bench.out.rglob("result_0.txt")
    blocks = read_log(log).all(keys.BLOCK_STOP)
    assert blocks[0].metadata["steps"] == STEPS // 2
    assert blocks[0].metadata["samples"] == STEPS // 2 * TASK.training.global_batch_size
    assert bench.rules_broken() == set()


@pytest.mark.parametrize(
    "key",
    [keys.RUN_START, keys.RUN_STOP, keys.EVAL_ACCURACY, keys.SEED, keys.PLAN, keys.MODE],
)
def test_a_trainer_writes_no_line_of_the_harness(
    server: RankServer, spec: RunSpec, key: str
) -> None:
    channel = begun(server)

    channel.send(Describe(key, 1))

    wait_until(lambda: server.problem)
    assert server.problem == f"rank 0 sent a line that only the harness writes, {key}"
    assert all(entry.value != 1 for entry in read_log(spec.log).all(key))


@pytest.mark.parametrize(
    ("predictions", "problem"),
    [
        (whole(SAMPLES - 1), f"{8 * SAMPLES - 8} bytes of predictions for {SAMPLES} samples"),
        (Predictions(((-1, SAMPLES),)), "predictions for the samples [-1, "),
        (Predictions(((0, SAMPLES + 1),)), "predictions for the samples [0, "),
        (Predictions(((5, 3),)), "predictions for the samples [5, 3]"),
        (Predictions(((1,),)), "predictions for the samples [1]"),
        (Predictions(((0, 9), (8, 12)), bytes(8 * 13)), "two predictions for a sample from 8"),
        (whole(SAMPLES + 1), f"a message of 65 + {8 * SAMPLES + 8} bytes"),
        (dataclasses.replace(whole(), weights=7), "a message without the memory that it names"),
    ],
)
def test_predictions_that_are_not_one_for_each_sample_end_the_run(
    server: RankServer, predictions: Predictions, problem: str
) -> None:
    channel = begun(server)
    channel.send(Evaluate(STEPS))

    channel.send(predictions)

    wait_until(lambda: server.problem)
    assert server.problem.startswith(f"rank 0 sent {problem}")


def _file_of_its_own(content: bytes, folder: Path) -> int:
    (folder / "weights").write_bytes(content)
    return os.open(folder / "weights", os.O_RDONLY)


def _unsealed(content: bytes, _: Path) -> int:
    descriptor = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    return descriptor


def _endless(_: bytes, __: Path) -> int:
    descriptor = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 2**40)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("memory", "size", "problem"),
    [
        (_file_of_its_own, 3, "weights in memory that is not sealed"),
        (_unsealed, 3, "weights in memory that is not sealed"),
        (lambda content, _: seal_bytes(content), 4, "3 bytes of weights, where it says 4"),
        (_endless, 2**40, f"{2**40} bytes of weights, where "),
    ],
)
def test_weights_that_could_still_change_or_are_too_large_end_the_run(
    server: RankServer,
    memory: Callable[[bytes, Path], int],
    size: int,
    problem: str,
    tmp_path: Path,
) -> None:
    channel = begun(server)
    channel.send(Evaluate(STEPS))
    descriptor = memory(b"abc", tmp_path)

    channel.send(dataclasses.replace(whole(), weights=size), descriptor)

    os.close(descriptor)
    wait_until(lambda: server.problem)
    assert server.problem.startswith(f"rank 0 sent {problem}")


def test_files_that_no_message_names_do_not_pile_up(server: RankServer) -> None:
    channel = begun(server)
    before = _open_files()
    descriptor = os.open(os.devnull, os.O_RDONLY)

    with contextlib.suppress(ChannelError):
        for _ in range(100):
            channel.send(Describe("note"), descriptor)

    os.close(descriptor)
    wait_until(lambda: _open_files() < before)  # by the harness's end of the channel


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_trainer_does_not_say_how_fast_the_harness_finds_it(server: RankServer) -> None:
    channel = begun(server)

    channel.send(Track({"throughput": 1e9}))

    wait_until(lambda: server.problem)
    assert server.problem == "rank 0 sent a statistic that only the harness measures, throughput"


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!IQ", 2**31, 0),
        struct.pack("!IQ", 2, 2**40) + b"{}",
        struct.pack("!IQ", 2, 0) + b"[]",
        struct.pack("!IQ", 3, 0) + b"\xff\xff\xff",
        struct.pack("!IQ", 33, 0) + b'{"message": "EvaluationVerdict"}\n',
        struct.pack("!IQ", 29, 0) + b'{"message": "Ready", "x": 1}\n',
    ],
)
def test_what_is_no_message_ends_the_run(server: RankServer, frame: bytes) -> None:
    channel = begun(server)

    with socket.socket(fileno=os.dup(channel.fileno())) as connection:
        connection.sendall(frame)

    wait_until(lambda: server.problem)
    assert server.problem.startswith("rank 0 sent ")


@pytest.mark.parametrize(("rank", "right_token"), [(0, True), (1, True), (-1, True), (0, False)])
def test_nobody_joins_as_another_rank(server: RankServer, rank: int, *, right_token: bool) -> None:
    begun(server)
    address = server.address if right_token else f"x{server.address}"

    joined(address, rank)

    wait_until(lambda: server.problem)
    assert server.problem.startswith("a process sent ")


def test_the_seed_of_the_order_comes_with_the_start(server: RankServer, spec: RunSpec) -> None:
    channel = joined(server.address)
    welcome = channel.receive()
    assert isinstance(welcome, Welcome)
    assert welcome.seed == spec.weights_seed != spec.seed
    channel.send(Ready())

    start = channel.receive()

    assert isinstance(start, Start)
    assert start.seed == spec.seed
    assert read_log(spec.log).first(keys.RUN_START) is not None
    other = dataclasses.replace(spec, seed=spec.seed + 1)
    assert other.weights_seed != spec.weights_seed


def test_time_in_which_the_harness_reads_no_message_counts(spec: RunSpec) -> None:
    """A harness that is stopped, as on a kernel without scopes, measures more and not less."""
    spec.work.mkdir()
    with (
        contextlib.closing(RankServer(spec)) as server,
        contextlib.closing(connect(server.address, 0)) as channel,
    ):
        server.serve(0.1)
        channel.send(Ready())
        server.serve(0.5)
        channel.send(Evaluate(STEPS))
        channel.send(whole())
        time.sleep(0.4)
        server.serve(0.1)
    log = read_log(spec.log)
    start, stop = log.first(keys.RUN_START), log.first(keys.EVAL_STOP)
    assert start is not None
    assert stop is not None
    assert stop.time_ms - start.time_ms >= 400
