"""``--launcher slurm``: the sbatch file, what is refused, and a job in Slurm's words."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.run.request import RunRequest
from hybridperf.run.slurm import SlurmJob, _attempt_progress, sbatch_options
from tests.cli.conftest import hybridperf
from tests.run.conftest import FAULTY
from tests.run.pair import ended
from tests.run.test_nodes import pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.conftest import Bench, Finished
    from tests.run.pair import Pair

__all__ = ["hybridperf", "pair"]

PAGE = Path(__file__).parents[2] / "docs/clusters.md"
PROGRAM = ["/opt/venv/bin/hybridperf"]
RUN = ["run", "resnet50/cluster", "--data-dir", "/data/imagenet", "--plan", "dp=16"]
SLURM = ["--launcher", "slurm"]


@pytest.fixture
def printed(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """``printed(*arguments)``: what ``hybridperf run --launcher slurm --print`` prints."""
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")

    def carry_out(*arguments: str) -> Finished:
        out = () if "--out" in arguments else ("--out", "/shared/runs")
        words = [*RUN, *arguments, *out, *SLURM, "--print"]
        monkeypatch.setattr(sys, "argv", PROGRAM + words)
        return hybridperf(*words)

    return carry_out


def options_of(text: str) -> dict[str, str]:
    """Return the options of sbatch in its file."""
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (line[10:].partition("=") for line in lines)}


def test_the_file_is_as_it_is_documented(printed: Callable[..., Finished]) -> None:
    done = printed("--nodes", "2", "--slurm", "time=8:00:00", "--slurm=partition=gpu")

    assert done.code == 0
    assert f"```bash needs-nodes\n{done.out}```\n" in PAGE.read_text(encoding="utf-8")


def test_one_node_has_no_rendezvous(printed: Callable[..., Finished]) -> None:
    text = printed("--keep-weights").out

    assert options_of(text)["nodes"] == "1"
    assert "rendezvous" not in text
    assert text.endswith(
        "hybridperf run resnet50/cluster --data-dir /data/imagenet --plan dp=16 --keep-weights "
        "--out /shared/runs\n"
    )


@pytest.mark.parametrize(
    ("given", "without", "changed"),
    [
        (["gpus-per-node=0"], {"gpus-per-node"}, {}),
        (["gres=gpu:h100:8"], {"gpus-per-node"}, {"gres": "gpu:h100:8"}),
        (["cpus-per-task=64"], {"exclusive", "mem"}, {"cpus-per-task": "64"}),
        (["no-requeue"], {"requeue"}, {"no-requeue": ""}),
        (["signal=TERM@300", "mem=64G"], set(), {"signal": "TERM@300", "mem": "64G"}),
    ],
)
def test_an_option_takes_the_place_of_the_launchers(
    printed: Callable[..., Finished], given: list[str], without: set[str], changed: dict[str, str]
) -> None:
    plain = options_of(printed().out)

    options = options_of(printed(*(f"--slurm={each}" for each in given)).out)

    assert without <= plain.keys()
    kept = {name: value for name, value in plain.items() if name not in without}
    assert options == kept | changed


@pytest.mark.parametrize(
    "given",
    [
        "time=1\n#SBATCH --wrap=id",
        "partition=a\nid",
        "comment=#SBATCH",
        "comment=$(id)",
        "comment=`id`",
        "comment=a;id",
        "comment=a|id",
        "comment=a&id",
        "comment=a>b",
        "comment='a'",
        'comment="a"',
        "comment=a b",
        "comment=a\\b",
        "comment=a*",
        "comment=\N{GREEK SMALL LETTER ALPHA}",
        "comment=\x1b[2J",
        "comment=",
        "Time=1",
        "p=long",
        "time 1",
        "$(id)=1",
        "time\n=1",
        "",
    ],
)
def test_nothing_but_an_option_gets_into_the_file(
    printed: Callable[..., Finished], given: str
) -> None:
    done = printed("--slurm", given)

    assert (done.code, done.out) == (2, "")
    assert done.sentence.startswith(
        "hybridperf: expected --slurm with a long option of sbatch, and"
    )
    assert done.err.count("\n") == 1
    assert done.err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("name", ["nodes=4", "wrap=id", "array=0-3", "output=/etc/passwd"])
def test_an_option_that_the_launcher_needs_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="with an option that 'hybridperf run' does not set itself"):
        sbatch_options([name])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rendezvous", "a:1"), "expected options that hold on any node, with --launcher slurm"),
        (("--node-rank", "0"), "found --node-rank; drop it"),
        (("--dry-run",), "found --dry-run; drop it"),
        (("--plan", "auto"), "found --plan auto; drop it"),
        (("--nodes", "3"), "expected a plan whose ranks 3 nodes share equally"),
        (("--plan", "dp=16,staleness=1"), "staleness"),
        (
            ("--out", "/a folder"),
            "expected --out whose path has letters, digits and _@+=:,./- only",
        ),
        (("--out", "/a\n#SBATCH --wrap=id"), "expected --out whose path has"),
    ],
)
def test_what_no_job_could_carry_out_is_refused_before_it_waits(
    printed: Callable[..., Finished], arguments: tuple[str, ...], sentence: str
) -> None:
    done = printed(*arguments)

    assert (done.code, done.out) == (2, "")
    assert sentence in done.sentence
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("alone", [("--print",), ("--slurm", "time=1")])
def test_options_of_the_launcher_need_it(
    hybridperf: Callable[..., Finished], alone: tuple[str, ...]
) -> None:
    done = hybridperf("run", "resnet/laptop", *alone)

    assert done.code == 2
    assert f"expected --launcher slurm, found {alone[0]} alone" in done.sentence


def test_arguments_are_words_of_the_shell(printed: Callable[..., Finished]) -> None:
    text = printed("--data-dir", "/a\n#SBATCH --wrap=id;$(id)").out

    assert "wrap" not in options_of(text.partition("\nexport")[0])
    assert "--data-dir '/a\n#SBATCH --wrap=id;$(id)' --out /shared/runs\n" in text


def test_a_machine_without_slurm_says_so(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["run", "resnet/laptop", "--out", str(tmp_path), *SLURM]
    monkeypatch.setattr(sys, "argv", PROGRAM + words)

    done = hybridperf(*words)

    assert done.code == 4
    assert "expected Slurm's sbatch on this machine, found no such command" in done.sentence


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("COMPLETED", 0, 0),
        ("FAILED", 1, 1),
        ("FAILED", 5, 5),
        ("FAILED", 127, "job 7 to end with the command, found FAILED with exit status 127"),
        ("OUT_OF_MEMORY", 0, "found OUT_OF_MEMORY"),
        ("TIMEOUT", 0, "job 7 was ended by Slurm: TIMEOUT; give the same command again"),
        ("CANCELLED", 0, "CANCELLED"),
        ("NODE_FAIL", 1, "NODE_FAIL"),
    ],
)
def test_a_job_ends_as_its_command_or_says_why_not(
    state: str, status: int, code: int | str
) -> None:
    job = SlurmJob(7, state, "None", status, "/runs/a.sbatch")

    assert job.ended
    if isinstance(code, int):
        assert job.ending() is ExitCode(code)
    else:
        with pytest.raises(UserError, match=code) as refused:
            job.ending()
        assert refused.value.exit_code in {ExitCode.ENVIRONMENT, ExitCode.INTERRUPTED}


def test_a_requeued_job_has_not_ended() -> None:
    states = "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED"
    assert not any(SlurmJob(7, state, "BeginTime", 0, "").ended for state in states)


@pytest.mark.parametrize("nodes", [pytest.param((0,), marks=pytest.mark.exhaustive), (1,), (0, 1)])
def test_a_signal_to_all_processes_of_a_job_step_interrupts_the_run(
    pair: Pair, nodes: tuple[int, ...]
) -> None:
    started = pair.hang()

    for node in nodes:  # ranks act on it at once, and harnesses when they look
        for process in pair.ranks_of(node):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that only lived for a moment
                process.terminate()
    time.sleep(0.3)
    for node in nodes:
        started[node].send_signal(signal.SIGTERM)

    done = ended(*started)
    assert [each.code for each in done] == [5, 5], done
    pair.assert_settled("interrupted")


def test_progress_is_read_from_the_folder_of_results(bench: Bench) -> None:
    task = bench.tasks / "resnet/laptop.toml"
    request = RunRequest(task, ParallelPlan(), 1, bench.out, trainer=FAULTY, division="open")
    assert _attempt_progress(request) is None
    command = bench.start(FAULT="hang")
    bench.await_batches(42)

    found = _attempt_progress(request)

    assert found is not None
    done, attempt, progress = found
    assert (done, attempt, progress.trained) == (0, 0, "epoch 1")
    assert progress.running
    assert progress.batches >= 42
    assert progress.quality is not None
    assert _attempt_progress(dataclasses.replace(request, plan=ParallelPlan(dp=2))) is None
    command.kill()


def write_command(folder: Path, name: str, script: str) -> None:
    """Write a command in place of one of Slurm's."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


JOB = "echo JobId=7 JobName=x JobState={} Reason={} ExitCode={}:0 Command={}"


@pytest.fixture
def slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hybridperf: Callable[..., Finished]
) -> Callable[..., Finished]:
    """``slurm(script)``: submit a job of which ``script`` is scontrol."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("hybridperf.run.slurm._SHORTEST_POLL_S", 0.01)
    out = tmp_path / "out"
    prefix = out / "resnet-laptop_dp1"
    words = ["run", "resnet/laptop", "--out", str(out), *SLURM]
    monkeypatch.setattr(sys, "argv", PROGRAM + words)
    submitted = tmp_path / "submitted"
    write_command(tmp_path, "sbatch", f"echo 1 >> {submitted}; echo 7; echo done > {prefix}.7.out")

    def carry_out(script: str, *arguments: str) -> Finished:
        write_command(tmp_path, "scontrol", script.replace("FILE", f"{prefix}.sbatch"))
        return hybridperf(*words, *arguments)

    return carry_out


def test_the_command_ends_as_its_job_and_prints_what_the_job_prints(
    slurm: Callable[..., Finished], tmp_path: Path
) -> None:
    answers = [
        JOB.format("PENDING", "Resources", 0, "FILE"),
        JOB.format("RUNNING", "None", 0, "FILE"),
        "exit 1",  # as while slurmctld starts again
        JOB.format("FAILED", "NonZeroExitCode", 1, "FILE"),
    ]
    cases = " ".join(f"{number}) {answer} ;;" for number, answer in enumerate(answers, 1))
    count = f"echo >> {tmp_path}/asked; n=$(wc -l < {tmp_path}/asked)"

    done = slurm(f"{count}; case $n in {cases} esac")

    assert (done.code, done.out) == (1, "done\n")
    said = [line.removeprefix("hybridperf: job 7: ") for line in done.err.splitlines()]
    assert said == [
        *("SUBMITTED", "PENDING (Resources)", "RUNNING", "RUNNING (Slurm does not answer)"),
        "FAILED (NonZeroExitCode)",
    ]


def test_a_job_that_has_not_ended_is_followed_and_not_submitted_twice(
    slurm: Callable[..., Finished], tmp_path: Path
) -> None:
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    ended = JOB.format("COMPLETED", "None", 0, "FILE")
    first = slurm(gone)
    assert first.code == 4
    assert "expected job 7 among Slurm's jobs, found no such job" in first.err
    script = f"test -e {tmp_path}/begun && {ended} || {JOB.format('RUNNING', 'None', 0, 'FILE')}"

    done = slurm(f"{script}; touch {tmp_path}/begun")

    assert done.code == 0
    assert (tmp_path / "submitted").read_text() == "1\n"  # the first job was still running
    (tmp_path / "begun").unlink()
    with (tmp_path / "out/resnet-laptop_dp1.sbatch").open("a") as file:
        file.write("# another command's\n")
    refused = slurm(script)
    assert refused.code == 2
    assert "expected the command of job 7, which has not ended, found another" in refused.sentence
    assert slurm(ended).code == 0
    assert (tmp_path / "submitted").read_text() == "1\n1\n"


def test_a_job_that_slurm_refuses_is_refused_in_its_words(
    slurm: Callable[..., Finished], tmp_path: Path
) -> None:
    said = "sbatch: error: Invalid generic resource (gres) specification"
    write_command(tmp_path, "sbatch", f"echo '{said}' >&2; exit 1")

    done = slurm("exit 1")

    assert done.code == 4
    assert "expected a job that Slurm accepts" in done.sentence
    assert "found 'Invalid generic resource" in done.sentence
