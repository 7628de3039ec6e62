"""Slurm as a launcher: the sbatch file of a command, its job, and how the job ends.

Queueing, placement and restart are Slurm's. The job gives the command on each of its nodes, and
again after Slurm has requeued it; the command itself continues an unfinished result.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import math
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.files import write_atomically
from hybridperf.run.processes import read_pulse
from hybridperf.run.request import check_request
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import RunProgress
from hybridperf.system.accelerators import Devices
from hybridperf.untrusted import LINE_CAP_BYTES, number, read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import TextIO

    from hybridperf.run.request import RunRequest
    from hybridperf.run.run_set import RunSetObserver

__all__ = ["SbatchFile", "SlurmJob", "follow", "sbatch_options"]

_SHORTEST_POLL_S: Final = 1.0
_LONGEST_POLL_S: Final = 10.0
_NOTICE_S: Final = 120  #: from SIGTERM to the time limit; a run is sealed within seconds
_FIRST_PORT: Final = 20_000  #: of the rendezvous; below the ports that Linux chooses itself
_PORTS: Final = 10_000
_NAME: Final = re.compile(r"[a-z][a-z-]{1,40}")
_VALUE: Final = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]{1,4000}")
_PATH: Final = re.compile(r"[A-Za-z0-9_@+=:,./-]{1,4000}")  # no %, which sbatch replaces
_FACT: Final = re.compile(r"(\w+)=(\S*)")
#: options of sbatch that the launcher sets itself, or that make another job than one of this file
_RESERVED: Final = frozenset(
    {
        *("array", "chdir", "clusters", "error", "nodes", "ntasks", "ntasks-per-node", "open-mode"),
        *("output", "parsable", "test-only", "wait", "wrap"),
    }
)
#: options of the launcher that an option of the user takes the place of, besides its own namesake
_REPLACED: Final[Mapping[str, tuple[str, ...]]] = {
    "cpus-per-task": ("exclusive", "mem"),  # a part of each node
    "mem-per-cpu": ("mem",),
    "mem-per-gpu": ("mem",),
    "no-requeue": ("requeue",),
    **dict.fromkeys(("gpus", "gpus-per-socket", "gpus-per-task", "gres"), ("gpus-per-node",)),
}
_ENDED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    }
)
#: states after which the same command continues
_CUT_SHORT: Final = frozenset({"CANCELLED", "DEADLINE", "NODE_FAIL", "PREEMPTED", "TIMEOUT"})


def sbatch_options(given: Iterable[str]) -> dict[str, str]:
    """Parse the values of ``--slurm``: options of sbatch, with "" for an option without a value.

    Raises:
        UserError: exit status 2 if one is malformed or the launcher sets it itself.
    """
    options = {}
    for text in given:
        name, equals, value = text.removeprefix("--").partition("=")
        if not _NAME.fullmatch(name) or (equals and not _VALUE.fullmatch(value)):
            expected = "--slurm with a long option of sbatch, and letters, digits and _@%+=:,./[]-"
            remedy = "set others by sbatch's own variables, such as SBATCH_CONSTRAINT"
            raise UserError.of("slurm.option", expected, f"{text!r:.80}", remedy)
        if name in _RESERVED:
            expected = "--slurm with an option that 'hybridperf run' does not set itself"
            raise UserError.of("slurm.option", expected, repr(name), "drop it")
        options[name] = value
    return options


@dataclass(frozen=True, slots=True)
class SbatchFile:
    """The file by which sbatch has the nodes of a job carry out ``arguments`` of this program."""

    request: RunRequest
    arguments: tuple[str, ...]  #: of hybridperf, those of the launcher included
    options: Mapping[str, str]  #: `sbatch_options`

    @property
    def path(self) -> Path:
        """Return where the file is written: in the folder of results."""
        return self._beside("sbatch")

    def output(self, job: int | str, kind: str) -> Path:
        """Return the file of the standard output (``out``) or error (``err``) of ``job``."""
        return self._beside(f"{job}.{kind}")

    def _beside(self, ending: str) -> Path:
        name = f"{self.request.task().slug}_{self.request.plan.slug}"
        return self.request.out.absolute() / f"{name}.{ending}"

    def text(self) -> str:
        """Return the content of the file.

        Raises:
            UserError: exit status 2 if nodes of the kind that is asked for cannot carry the request
                out, or the path of the folder of results has characters that sbatch would replace.
        """
        devices = self._devices()
        if findings := check_request(self.request, devices):
            raise UserError(findings[0], ExitCode.USAGE)
        if not _PATH.fullmatch(str(self.path)):
            expected = "--out whose path has letters, digits and _@+=:,./- only, for Slurm"
            raise UserError.of("slurm.out", expected, repr(str(self.path)), "choose another")
        lines = [f"#SBATCH --{name}={value}" for name, value in self._options(devices).items()]
        return "\n".join(
            ["#!/bin/bash", *(line.removesuffix("=") for line in lines), "", *self._script(), ""]
        )

    def _devices(self) -> Devices:
        """Return the devices of a node that the job asks for."""
        count = math.ceil(self.request.plan.ranks / self.request.nodes.count)
        has_gpus = self.options.get("gpus-per-node") != "0"
        return Devices("gpu" if has_gpus else "cpu", count, "")

    def _options(self, devices: Devices) -> dict[str, str]:
        own = {
            "job-name": f"hybridperf-{self.request.task().slug}",
            "nodes": str(self.request.nodes.count),
            "ntasks-per-node": "1",
            "exclusive": "",
            "mem": "0",
            "gpus-per-node": str(devices.count),
            "requeue": "",
            "signal": f"TERM@{_NOTICE_S}",
            "open-mode": "append",  # a requeued job's output follows its earlier output
            "output": str(self.output("%j", "out")),
            "error": str(self.output("%j", "err")),
        }
        replaced = {name for given in self.options for name in _REPLACED.get(given, ())}
        options = {name: value for name, value in own.items() if name not in replaced}
        options |= self.options
        if devices.kind == "cpu":
            del options["gpus-per-node"]
        return options

    def _script(self) -> Iterator[str]:
        """Yield the lines of the shell script."""
        words = [sys.executable, str(Path(sys.argv[0]).absolute()), *_of_the_job(self.arguments)]
        command = shlex.join(words)
        yield "# The exit status of srun where srun itself fails"
        yield f"export SLURM_EXIT_ERROR={ExitCode.ENVIRONMENT:d}"
        if self.request.nodes.count > 1:
            yield 'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
            yield f"port=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))"
            command += ' --rendezvous "$host:$port"'
        yield "# Each node has all cores of the job there, and the command itself ends all nodes"
        yield "exec srun --cpu-bind=none --kill-on-bad-exit=0 --wait=0 \\"
        yield f"  {command}"

    def submit(self) -> SlurmJob:
        """Submit the file; return its job, which an earlier command may have submitted.

        Raises:
            UserError: exit status 2 as `text`, or if the job of another command with this file has
                not ended; 4 if Slurm is not here or refuses the job.
        """
        text = self.text()
        noted = self._beside("job")
        with contextlib.suppress(OSError, ValueError):
            earlier = SlurmJob.read(int(read_bounded(noted, LINE_CAP_BYTES)))
            if earlier is not None and earlier.file == str(self.path) and not earlier.ended:
                if self.path.read_text() == text:
                    return earlier
                remedy = f"wait until it ends, or end it with: scancel {earlier.number}"
                expected = f"the command of job {earlier.number}, which has not ended"
                raise UserError.of(
                    "slurm.job", expected, "another command", remedy, path=str(noted)
                )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, text.encode())
        done = _call("sbatch", "--parsable", str(self.path))
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2].rpartition("error: ")[2]
            raise UserError.of(
                "slurm.job",
                "a job that Slurm accepts",
                repr(said),
                "change it by --slurm, such as --slurm gpus-per-node=0 on nodes without GPUs",
                path=str(self.path),
                exit_code=ExitCode.ENVIRONMENT,
            )
        job = SlurmJob(int(done.stdout), "SUBMITTED", "", 0, str(self.path))
        write_atomically(noted, f"{job.number}\n".encode())
        return job


def _of_the_job(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the ``arguments`` without the launcher's own."""
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in {"--launcher", "--slurm"}:
            if not equals:
                next(words)
        elif word != "--print":
            yield word


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What Slurm states about a job."""

    number: int
    state: str  #: in the words of Slurm, such as PENDING
    reason: str  #: why the job is in this state, such as Resources; None if there is no reason
    exit_status: int  #: of the script; 0 before its end
    file: str  #: path of the sbatch file

    @classmethod
    def read(cls, job: int) -> SlurmJob | None:
        """Ask Slurm for the job; None if Slurm does not know it, or no longer.

        Raises:
            TimeoutError: if Slurm does not answer.
            UserError: exit status 4 if Slurm's commands are not here.
        """
        done = _call("scontrol", "--oneliner", "show", "job", str(job))
        if "Invalid job id" in done.stderr:
            return None
        facts = dict(_FACT.findall(done.stdout))
        if done.returncode or "JobState" not in facts:
            raise TimeoutError(done.stderr.strip())
        status = int(facts["ExitCode"].partition(":")[0])
        return cls(job, facts["JobState"], facts["Reason"], status, facts.get("Command", ""))

    @property
    def ended(self) -> bool:
        """Return whether the job has ended, and is not requeued."""
        return self.state in _ENDED

    def ending(self) -> ExitCode:
        """Return the exit status of the command, of which the job has ended.

        Raises:
            UserError: exit status 5 if Slurm has ended it, 4 if it failed without the command.
        """
        if self.state in {"COMPLETED", "FAILED"} and self.exit_status in list(ExitCode):
            return ExitCode(self.exit_status)
        if self.state in _CUT_SHORT:
            again = "give the same command again to continue"
            reason = f"job {self.number} was ended by Slurm: {self.state}; {again}."
            raise UserError(reason, ExitCode.INTERRUPTED)
        raise UserError.of(
            "slurm.ended",
            f"job {self.number} to end with the command",
            f"{self.state} with exit status {self.exit_status}",
            "look at what it printed",
            exit_code=ExitCode.ENVIRONMENT,
        )


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UserError.of(
            "slurm.commands",
            f"Slurm's {command[0]} on this machine",
            "no such command",
            "give the command where jobs are submitted, or only print the file with --print",
            exit_code=ExitCode.ENVIRONMENT,
        ) from error


class _Tail:
    """Copies what is appended to the file at ``path`` to ``stream``."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self._path, self._stream, self._offset = path, stream, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def copy(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:  # it is not there yet
            return
        self._offset += len(content)
        self._stream.write(self._decoder.decode(content))
        self._stream.flush()


def follow(
    file: SbatchFile, job: SlurmJob, say: Callable[[str], None], observer: RunSetObserver
) -> ExitCode:
    """Follow ``job`` of ``file`` until it ends; return the exit status of its command.

    Each new state goes to ``say``, progress to ``observer``, and what the job prints to the streams
    of this process.

    Raises:
        UserError: as `SlurmJob.ending`; exit status 4 if Slurm forgets the job, 5 if this process
            is interrupted, which does not end the job.
    """
    tails = [
        _Tail(file.output(job.number, "out"), sys.stdout),
        _Tail(file.output(job.number, "err"), sys.stderr),
    ]
    said, poll_s, attempt = "", _SHORTEST_POLL_S, -1
    try:
        while True:
            if (state := _state(job)) != said:
                say(f"job {job.number}: {state}")
                said, poll_s = state, _SHORTEST_POLL_S
            if job.ended:
                break
            time.sleep(poll_s)
            poll_s = min(1.2 * poll_s, _LONGEST_POLL_S)
            for tail in tails:
                tail.copy()
            if job.state == "RUNNING" and (seen := _attempt_progress(file.request)) is not None:
                done, current, progress = seen
                if current != attempt:
                    observer.begin(done, file.request.runs, file.request.task())
                    attempt = current
                observer.progress(progress)
            try:
                now = SlurmJob.read(job.number)
            except TimeoutError:
                now = dataclasses.replace(job, reason="Slurm does not answer")
            if now is None:
                raise UserError.of(
                    "slurm.ended",
                    f"job {job.number} among Slurm's jobs",
                    "no such job",
                    f"read {file.output(job.number, 'err')}, and give the command again",
                    exit_code=ExitCode.ENVIRONMENT,
                )
            job = now
    except KeyboardInterrupt:
        end = f"'scancel {job.number}' ends it"
        again = "the same command follows it again"
        reason = f"job {job.number} was not ended by this; {end}, and {again}."
        raise UserError(reason, ExitCode.INTERRUPTED) from None
    time.sleep(_SHORTEST_POLL_S)  # for network storage to show the last lines
    for tail in tails:
        tail.copy()
    return job.ending()


def _state(job: SlurmJob) -> str:
    return job.state if job.reason in {"None", ""} else f"{job.state} ({job.reason})"


def _attempt_progress(request: RunRequest) -> tuple[int, int, RunProgress] | None:
    """Return completed runs, number and progress of the attempt of ``request`` under way, if any.

    Read from the folder of results, by the clock of this machine.
    """
    folders = f"{request.org}/results/*/{request.task().slug}/.attempt_*/run.json"
    specs = [spec for path in request.out.glob(folders) if (spec := _read_spec(path)) is not None]
    specs = [spec for spec in specs if spec.plan == str(request.plan)]
    if not specs:
        return None
    spec = max(specs, key=lambda each: each.clock.wall_ms)
    log = read_log(spec.log)
    start, evaluations = log.first(keys.RUN_START), log.all(keys.EVAL_ACCURACY)
    since_ms = spec.clock.wall_ms if start is None else start.time_ms
    last = evaluations[-1] if evaluations else None
    quality = None if last is None else number(last.value)
    progress = RunProgress(
        running=start is not None,
        elapsed_s=max(0.0, time.time() - since_ms / 1000),
        batches=read_pulse(spec.pulse_of(0), 1)[0],
        trained="" if last is None else keys.progress_text(last.metadata),
        quality=None if quality is None else float(quality),
    )
    done = len(list(Path(spec.folder).parent.glob("result_*.txt")))
    return done, spec.attempt, progress


def _read_spec(path: Path) -> RunSpec | None:
    try:
        return RunSpec.read(path)
    except UserError:  # sealed meanwhile
        return None
