"""Profile the training of a task on this machine: ``-m hybridperf_reference.profile TASK OUT``.

``TASK`` is the file of a task. Every rank runs it, under torchrun or the harness's launcher; rank 0
writes the profile, a JSON file, to ``OUT``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.profile import Profile
from hybridperf.projection.units import UnitTimes
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import read_task
from hybridperf_reference.engine.compilation import leave_out_compiler
from hybridperf_reference.engine.link_profile import measure_transfers
from hybridperf_reference.engine.mesh import join_ranks, own_rank
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.unit_profile import UnitProfiler
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.models import Build

__all__ = ["main", "measure"]

_STEPS = 25
_BATCHES = 15


def main(build: Build | None = None) -> None:
    """Measure units and links on all ranks, and write the profile.

    ``build`` overrides the task's model family.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path, help="file of the task")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--precision", choices=FIELDS["precision"].words, default="fp32")
    parser.add_argument("--microbatches", type=int, nargs="+", required=True, metavar="SAMPLES")
    parser.add_argument("--steps", type=int, default=_STEPS, help="steps of each micro-batch")
    options = parser.parse_args()
    profile = measure(
        read_task(options.task), options.precision, options.microbatches, options.steps, build
    )
    if profile is not None:
        options.out.write_text(json.dumps(profile.as_table(), allow_nan=False) + "\n")


def measure(
    task: Task,
    precision: str,
    microbatches: Sequence[int],
    steps: int = _STEPS,
    build: Build | None = None,
) -> Profile | None:
    """Return the profile of ``task`` on rank 0, and None on others."""
    leave_out_compiler()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with join_ranks(ParallelPlan(dp=ranks)) as device:
        set_float32_math(tf32=precision == "tf32")
        chain = chain_of(task, 0, build)
        profiler = UnitProfiler(chain, task, device, precision=precision)
        alone_s = None
        middle = sorted(microbatches)[len(microbatches) // 2]
        if ranks > 1:
            if own_rank() == 0:
                alone_s = _step_s(*profiler.measure([middle], steps=steps))
            dist.barrier()
        measured = profiler.measure(
            sorted(microbatches), steps=steps, meet=partial(_meet, device=device)
        )
        times = [_mean(each, device) if ranks > 1 else each for each in measured]
        transfers = measure_transfers(device) if ranks > 1 else []
        input_s, target_s = _reading_s(task, chain.objective)
        if own_rank():
            return None
        together_s = next(_step_s(each) for each in times if each.microbatch == middle)
        return Profile(
            task=task.name,
            precision=precision,
            ranks=ranks,
            threads=torch.get_num_threads(),
            cores=len(os.sched_getaffinity(0)),
            library="gloo" if device.type == "cpu" else "nccl",
            date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            unit_names=tuple(unit.name for unit in chain.units),
            unit_times=tuple(times),
            contention=together_s / alone_s if alone_s else 1.0,
            transfers=tuple(transfers),
            input_s=input_s,
            target_s=target_s,
        )


def _reading_s(task: Task, objective: Objective) -> tuple[float, float]:
    """Return the seconds of reading the inputs and the targets of a sample, in training.

    Both are 0 where worker processes read ahead, and where the data are not on this machine.
    """
    if objective.reads_ahead:
        return 0.0, 0.0
    try:
        samples = load(task.data).train
    except UserError:
        return 0.0, 0.0
    count = task.training.global_batch_size
    inputs_s, targets_s = [], []
    for start in range(0, min(_BATCHES * count, task.data.train_samples - count), count):
        which = samples, np.arange(start, start + count), 0, 1
        begin = time.perf_counter()
        objective.prepare(*objective.read(*which))
        middle = time.perf_counter()
        objective.targets(*which)
        inputs_s.append((middle - begin) / count)
        targets_s.append((time.perf_counter() - middle) / count)
    return statistics.median(inputs_s), statistics.median(targets_s)


def _meet(elapsed_s: float, device: torch.device) -> float:
    """Wait for the other ranks, if there are any, and return the most ``elapsed_s`` of all."""
    if not dist.is_initialized():
        return elapsed_s
    most_s = torch.tensor(elapsed_s, device=device)
    dist.all_reduce(most_s, dist.ReduceOp.MAX)
    return most_s.item()


def _step_s(times: UnitTimes) -> float:
    return sum(times.forward_s) + sum(times.backward_s) + times.loss_s + sum(times.update_s)


def _mean(times: UnitTimes, device: torch.device) -> UnitTimes:
    """Return the mean of the ``times`` of all ranks."""
    own = [*times.forward_s, *times.backward_s, *times.update_s, times.loss_s]
    totals = torch.tensor(own, device=device)  # fp32: seven digits
    dist.all_reduce(totals)
    *means, loss_s = (totals / dist.get_world_size()).tolist()
    count = len(times.forward_s)
    forward, backward, update = (tuple(means[at : at + count]) for at in range(0, 3 * count, count))
    return UnitTimes(times.microbatch, forward, backward, loss_s, update)


if __name__ == "__main__":
    main()
