"""A rank at an end of a slow link: ``-m studies.slow_links.worlds TASK END KEY...``.

KEYs are methods with equal numbers of ranks. Each line of the input is an order, answered by a line
of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.run.profiles import profiled_microbatches
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import Groups, build_mesh, join_ranks
from hybridperf_reference.engine.profile import UnitProfiler, measure_averaging_work
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from hybridperf_reference.profile import profile_on
from studies.slow_links.blocks import AVERAGING_WORK, METHODS, PROFILE, TRANSFERS
from studies.slow_links.shaped_link import INTERFACE
from tests.performance.work import SEED, build_work

if TYPE_CHECKING:
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.engine.mesh import Mesh
    from tests.performance.work import Work

_EPOCH_STEPS: Final = 4  # few, for blocks of a few steps


class Side:
    """A trainer under one plan, and its bytes on the link."""

    def __init__(self, work: Work, plan: ParallelPlan, mesh: Mesh) -> None:
        chain = chain_of(work.task, SEED)
        self._work, self._plan, self._epochs = work, plan, 0
        # A trainer drops weights of other stages.
        self._gradient_bytes = _gradient_bytes(chain)
        self._trainer = Trainer(chain, work.task, plan, mesh, SEED)
        self._trainer.warm_up()

    def train(self, epochs: int) -> dict[str, Any]:
        """Train ``epochs`` epochs, and return seconds and bytes of a step.

        Seconds are means over the block: single steps of delayed plans are uneven, as two
        all-reduces overlap. Sent bytes are from this end's interface, counted from the method.
        """
        work, block = self._work, Block(self._epochs + 1, epochs)
        data = TrainingData(work.samples, work.task, SEED, block, on_batch=lambda: None)
        steps = epochs * _EPOCH_STEPS
        self._epochs += epochs
        gc.collect()
        dist.barrier()
        before, start_s = _sent_bytes(), time.perf_counter()
        self._trainer.train(data)
        dist.barrier()
        step_s = (time.perf_counter() - start_s) / steps
        sent_bytes = (_sent_bytes() - before) / steps
        found = self._trainer.statistics()
        parts = found["stages"]
        assert isinstance(parts, list)
        return {
            "steps": steps,
            "step_s": step_s,
            "input_s": max(part["input_s"] for part in parts) / steps,
            "sent_bytes": round(sent_bytes),
            "counted_bytes": round(self._counted_bytes(found.get("sent"), steps)),
        }

    def _counted_bytes(self, sent: object, steps: int) -> float:
        """Return the bytes that an end sends in a step, without headers.

        Programs count the bytes of all ranks, half at each end. With torch's runtimes, two replicas
        each send the bytes of all gradients (a ring of two), and stages send the activations of
        each sample at the cut, and their gradients back.
        """
        between_replicas = self._plan.dp > 1  # else between stages
        if isinstance(sent, dict):
            crossing: int = sent["gradient_bytes" if between_replicas else "link_bytes"]
            return crossing / steps / 2
        if between_replicas:
            return self._gradient_bytes
        batch = self._work.task.training.global_batch_size
        return self._trainer._part.edges[1].nbytes * batch


def serve(task_name: str, keys: list[str], answers: int) -> None:
    """Train as asked until the input ends; answers go to the file descriptor ``answers``."""
    torch.set_num_threads(1)
    work = build_work(task_name, steps=_EPOCH_STEPS)
    plans = {each.key: ParallelPlan.parse(each.plan) for each in METHODS if each.key in keys}
    with os.fdopen(answers, "w") as out, join_ranks(next(iter(plans.values()))) as device:
        groups = Groups()
        sides = {
            key: Side(work, plan, build_mesh(plan, device, groups)) for key, plan in plans.items()
        }
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            key, count = json.loads(line)
            if key in TRANSFERS:
                found = _transfer(key, *count)
            elif key == PROFILE:
                found = _profile(work, device, count)
            elif key == AVERAGING_WORK:
                found = _averaging_work(work, device)
            else:
                found = sides[key].train(count)
            print(json.dumps(found), file=out, flush=True)


def _profile(work: Work, device: torch.device, steps: int) -> dict[str, Any]:
    """Return the profile on rank 0, over the unlimited link."""
    found = profile_on(device, work.task, "fp32", profiled_microbatches(work.task), steps)
    return {PROFILE: found and found.as_table(), "sent_bytes": 0}


def _averaging_work(work: Work, device: torch.device) -> dict[str, Any]:
    """Return `measure_averaging_work` with steps of half of the batch."""
    half, chain = work.task.training.global_batch_size // 2, chain_of(work.task, SEED)
    train = partial(UnitProfiler(chain, work.task, device).step, half, marked=False)
    return {AVERAGING_WORK: measure_averaging_work(device, train), "sent_bytes": 0}


def _transfer(kind: str, count: int, repeats: int) -> dict[str, Any]:
    """Return the median seconds of an all-reduce, or of a message, of ``count`` bytes.

    A message is half of a round trip. Repetitions leave no burst in the token bucket.
    """
    values, rank, seconds = torch.zeros(count // 4), dist.get_rank(), []
    for _ in range(repeats):
        start = time.perf_counter()
        if kind == "all_reduce":
            dist.all_reduce(values)
        else:
            for sender in (0, 1):
                (dist.send if rank == sender else dist.recv)(values, 1 - rank)
        seconds.append((time.perf_counter() - start) / (1 if kind == "all_reduce" else 2))
    return {"seconds": statistics.median(seconds), "sent_bytes": 0}


def _gradient_bytes(chain: Chain) -> int:
    """Return the bytes of all gradients, with shared parameters once."""
    parameters = {
        id(parameter): parameter
        for unit in chain.units
        for parameter in unit.module.parameters()
        if parameter.requires_grad
    }
    return sum(parameter.nbytes for parameter in parameters.values())


def _sent_bytes() -> int:
    """Return the bytes that this namespace's end of the link has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    raise AssertionError(f"no interface {INTERFACE}")


def _pin_to_half(end: int) -> None:
    """Restrict this process to its end's half of the processors."""
    own = sorted(os.sched_getaffinity(0))
    half = max(1, len(own) // 2)
    os.sched_setaffinity(0, own[half:] if end else own[:half])


def _raise_priority() -> None:
    """Raise this process's priority; setpriority(2), and sched(7) on sessions.

    Under `SCHED_BATCH` waking threads do not preempt. Gloo's receiving thread would preempt the
    sending thread, and poll for the lock of the latter until its time slice ends.
    """
    os.nice(-20)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    session = Path("/proc/self/autogroup")
    if session.exists():  # priorities apply within a session only
        session.write_text("-20")


if __name__ == "__main__":
    _raise_priority()
    _pin_to_half(int(sys.argv[2]))
    keep = os.dup(1)
    os.dup2(2, 1)  # other output must not look like an answer
    serve(sys.argv[1], sys.argv[3:], keep)
