"""Jobs of two nodes under Slurm itself: munge, slurmctld and two slurmd on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.local_ranks import reserve_port
from tests.run.conftest import Finished, wait_until
from tests.run.test_nodes import saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.run.command_server import Command
    from tests.run.conftest import Bench

PROGRAMS = "munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel"
#: Both nodes are this machine. A requeued job waits as long as its old credential holds.
CONFIGURATION = """\
ClusterName=hybridperf
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmdTimeout=10
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=DEFAULT CPUs=2 Gres=gpu:1
NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]},{ports[2]}]
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODES = "127.0.0.1", "127.0.0.2"  # names that any machine resolves


def why_no_slurm() -> str:
    """Return why this machine cannot be a cluster of its own; "" if it can."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"no {missing[0]}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "the user is not root"


pytestmark = pytest.mark.skipif(bool(reason := why_no_slurm()), reason=f"no Slurm: {reason}")


@dataclass
class Cluster:
    """The daemons of Slurm, and its commands."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    reserved: list[socket.socket] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of commands and daemons."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons, and return when both nodes are idle."""
        self.reserved = [reserve_port("") for _ in range(3)]
        ports = [each.getsockname()[1] for each in self.reserved]
        host = socket.gethostname()
        text = CONFIGURATION.format(
            host=host, ports=ports, folder=self.folder, names=",".join(NODES)
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        subprocess.run(["mungekey", "--create", "--keyfile", key], check=True)
        files = {
            "key-file": key,
            "socket": self.folder / "munge.socket",
            "pid-file": self.folder / "munged.pid",
            "log-file": self.folder / "munged.log",
            "seed-file": self.folder / "munged.seed",
        }
        words = [f"--{name}={path}" for name, path in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *words)
        wait_until(files["socket"].exists, 60)
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_until(self._is_idle, 120)

    def start_node(self, node: str) -> None:
        """Start the slurmd of ``node``."""
        self._daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of ``node``, whose jobs go on, and have Slurm notice at once."""
        self.daemons[node].kill()
        self.daemons.pop(node).wait()
        self.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.printed").open("ab") as printed:
            self.daemons[name] = subprocess.Popen(
                command, stdout=printed, stderr=printed, env=os.environ | self.variables
            )

    def _is_idle(self) -> bool:
        dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
        assert not dead, (self.folder / f"{dead[0]}.printed").read_text()
        states = self.call("sinfo", "--noheader", "--Node", "--format=%t").split()
        return states == ["idle"] * len(NODES)

    def call(self, *command: str) -> str:
        """Carry out one of Slurm's commands, and return what it prints."""
        return subprocess.run(
            command,
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout

    def stop(self) -> None:
        """End all daemons, nodes first."""
        for daemon in reversed(self.daemons.values()):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for each in self.reserved:
            each.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(f"/tmp/hybridperf_slurm_{os.getpid()}")  # the path of a socket is short
    folder.mkdir(mode=0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@dataclass
class Queue:
    """A cluster, and the folder of results of its jobs."""

    cluster: Cluster
    bench: Bench

    def submit(self, *arguments: str, **variables: str) -> Command:
        """Start a command that submits a job of two nodes and follows it."""
        own: dict[str, Any] = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        own |= self.cluster.variables | variables
        words = ["--plan", "dp=2", "--nodes", "2", "--launcher", "slurm", *arguments]
        return self.bench.start(*words, **own)

    def hang(self, *arguments: str) -> Command:
        """Start a command whose job hangs in the second epoch of its first start."""
        once = str(self.bench.note())
        command = self.submit(*arguments, FAULT="hang", FAULT_RANK="1", FAULT_ONCE=once)
        self.bench.await_batches(42)
        return command

    @property
    def job(self) -> str:
        """Return the number of the job that was submitted last."""
        return (self.bench.out / "resnet-laptop_dp2.job").read_text().strip()

    def tell(self, *command: str) -> None:
        """Give Slurm a command."""
        said = self.cluster.call(*command)
        assert "error" not in said, said

    def assert_settled(self, *outcomes: str) -> None:
        """Attempts have ended so, and no process of a run is left."""
        wait_until(lambda: not self.bench.processes_left(), 60)
        self.bench.assert_settled()
        assert self.bench.outcomes() == list(outcomes)


@pytest.fixture
def queue(cluster: Cluster, bench: Bench) -> Iterator[Queue]:
    bench.server = None
    queue = Queue(cluster, bench)
    yield queue
    if (bench.out / "resnet-laptop_dp2.job").exists():
        cluster.call("scancel", queue.job)


def ended(command: Command) -> Finished:
    """Wait for a command; no command ever shows a traceback."""
    out, err = command.communicate(timeout=600)
    assert "Traceback" not in out + err, err
    assert command.returncode is not None
    return Finished(command.returncode, out, err)


def states(done: Finished) -> list[str]:
    """Return the states of the job that the command has said."""
    return re.findall(r"^hybridperf: job \d+: (\w+)", done.err, re.MULTILINE)


def test_a_job_of_two_nodes_trains_to_its_target(queue: Queue) -> None:
    done = ended(queue.submit())

    assert done.code == 0, done
    queue.assert_settled("success")
    assert queue.bench.rules_broken() == set()
    assert states(done)[0] == "SUBMITTED"
    assert states(done)[-1] == "COMPLETED"
    assert "  attempt 0: reached the target in " in done.err
    assert "writes the page." in done.out
    (manifest,) = queue.bench.manifests()
    assert manifest["nodes"] == [{}]
    assert "slurm" not in manifest["command"]


@pytest.mark.exhaustive
def test_a_requeued_job_has_the_same_seed(queue: Queue) -> None:
    command = queue.hang()

    queue.tell("scontrol", "requeue", queue.job)
    done = ended(command)

    assert done.code == 0, done
    queue.assert_settled("interrupted", "success")
    first, again = queue.bench.manifests()
    assert first["seed"] == again["seed"]
    assert states(done)[-1] == "COMPLETED"
    assert "PENDING" in states(done)[2:]


def test_a_requeued_job_goes_on_from_its_checkpoint(queue: Queue) -> None:
    saving(queue.bench)
    command = queue.hang()

    queue.tell("scontrol", "requeue", queue.job)
    done = ended(command)

    assert done.code == 0, done
    queue.assert_settled("success")
    (log,) = map(read_log, queue.bench.out.rglob("result_*.txt"))
    assert len(log.all(keys.RESUMED)) == 1
    assert queue.bench.rules_broken() == set()


def test_a_job_whose_node_is_lost_is_requeued_and_goes_on(queue: Queue) -> None:
    saving(queue.bench)
    command = queue.hang()

    queue.cluster.kill_node(NODES[1])
    wait_until(lambda: not queue.bench.processes_left(), 120)
    queue.cluster.start_node(NODES[1])
    done = ended(command)

    assert done.code == 0, done
    queue.assert_settled("success")
    (log,) = map(read_log, queue.bench.out.rglob("result_*.txt"))
    assert len(log.all(keys.RESUMED)) == 1


def test_a_job_that_is_cancelled_is_interrupted_and_can_be_continued(queue: Queue) -> None:
    command = queue.hang()

    queue.tell("scancel", queue.job)
    done = ended(command)

    assert done.code == 5, done
    queue.assert_settled("interrupted")
    assert f"job {queue.job} was ended by Slurm: CANCELLED; give the same command again" in done.err


@pytest.mark.exhaustive
def test_a_job_out_of_time_is_interrupted_before_its_limit(queue: Queue) -> None:
    command = queue.hang("--slurm", "time=1", "--slurm", "signal=TERM@20")

    done = ended(command)

    assert done.code == 5, done
    queue.assert_settled("interrupted")
    assert "is sealed as interrupted: stopped by SIGTERM" in done.err
