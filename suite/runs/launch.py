"""Start a run: the log's head, then the trainer on every rank, in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from suite.logs import keys
from suite.logs.hyperparameters import counted_in_steps, named_by_mlperf
from suite.logs.writer import LogWriter
from suite.runs.parent import PARENT_VARIABLE
from suite.runs.spec import NODE_VARIABLE, RUN_VARIABLE
from suite.systems.cpu import probe_processor
from suite.tasks.data import drop_from_page_cache
from suite.tasks.overrides import hyperparameters

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec
    from suite.tasks.task import Task

__all__ = ["launch", "launch_prediction", "write_head"]

_LAUNCHER: Final = "suite.runs.launcher"


def write_head(spec: RunSpec) -> None:
    """Write what is known before launch; initialisation, imports included, begins here."""
    task, plan = spec.task(), spec.parallel_plan()
    with LogWriter(spec.log, spec.clock) as log:
        log.point(keys.SUBMISSION_BENCHMARK, task.name)
        log.point(keys.SUBMISSION_ORG, spec.org)
        log.point(keys.SUBMISSION_DIVISION, spec.division)
        log.point(keys.SUBMISSION_STATUS, "onprem")
        log.point(keys.SUBMISSION_PLATFORM, spec.platform)
        drop_from_page_cache(task.data)
        log.point(keys.CACHE_CLEAR, value=True)
        log.start(keys.INIT_START)
        log.point(keys.TASK, {"name": task.name, "version": task.version, "sha256": task.sha256})
        log.point(keys.PLAN, str(plan))
        log.point(keys.SEED, spec.seed)
        for key, value in _mlperf_hyperparameters(task).items():
            log.point(key, value)
        log.point(keys.GRADIENT_ACCUMULATION_STEPS, plan.microbatches)
        log.point(keys.MODEL_BN_SPAN, plan.batch_norm_span(task.training.global_batch_size))
        log.point(keys.HYPERPARAMETERS, hyperparameters(task))


def launch(spec: RunSpec, node: int = 0) -> subprocess.Popen[bytes]:
    """Start the trainer under torchrun on this machine, one process for each rank of ``node``."""
    ranks = spec.parallel_plan().ranks // spec.nodes
    torchrun = ["torch.distributed.run", *_rendezvous(spec, node), f"--nproc-per-node={ranks}"]
    return _start(spec, [*torchrun, "-m", _LAUNCHER, f"{spec.trainer}.train"], ranks, node)


def launch_prediction(spec: RunSpec) -> subprocess.Popen[bytes]:
    """Start the trainer's predictor on the run's final weights."""
    return _start(spec, [f"{spec.trainer}.predict"], ranks=1)


def _rendezvous(spec: RunSpec, node: int) -> list[str]:
    """Return how torchrun finds itself on other nodes: by number, so that rank 0 is on node 0."""
    if spec.nodes == 1:
        return ["--standalone"]
    host, _, port = spec.rendezvous.rpartition(":")
    where = [f"--master-addr={host}", f"--master-port={port}"]
    return [f"--nnodes={spec.nodes}", f"--node-rank={node}", *where]


def _start(spec: RunSpec, module: list[str], ranks: int, node: int = 0) -> subprocess.Popen[bytes]:
    threads = max(1, probe_processor()["usable_cores"] // ranks)
    # One machine: its host name need not resolve.
    alone = {"GLOO_SOCKET_IFNAME": "lo"} if spec.nodes == 1 else {}
    environment = {
        "OMP_NUM_THREADS": str(threads),
        **alone,
        **os.environ,
        RUN_VARIABLE: str(spec.path),
        NODE_VARIABLE: str(node),
        PARENT_VARIABLE: str(os.getpid()),
    }
    with spec.output_of(node).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", _LAUNCHER, *module],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the harness, which ends all ranks together
        )


def _mlperf_hyperparameters(task: Task) -> dict[str, object]:
    """Return the task's hyperparameters under MLPerf's names."""
    table = hyperparameters(task)
    return {
        keys.GLOBAL_BATCH_SIZE: task.training.global_batch_size,
        keys.TRAIN_SAMPLES: task.data.train_samples,
        keys.EVAL_SAMPLES: task.data.eval_samples,
        **named_by_mlperf(table),
        **counted_in_steps(table, task.steps_per_epoch),
    }
