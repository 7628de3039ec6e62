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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.profile import Profile
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import read_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.compilation import leave_out_compiler
from hybridperf_reference.engine.input import Input
from hybridperf_reference.engine.link_profile import measure_averaging_work, measure_transfers
from hybridperf_reference.engine.mesh import join_ranks, own_rank
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.reading import ReadingRole
from hybridperf_reference.engine.timing import StepTimer
from hybridperf_reference.engine.unit_profile import UnitProfiler, mean_of_ranks, most_of_ranks
from hybridperf_reference.models import chain_of
from hybridperf_reference.runtime_profile import measure_runtimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridperf.projection.units import UnitTimes
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.models import Build

__all__ = ["main", "measure", "profile_on"]

_BATCHES = 15


def main(build: Build | None = None) -> None:
    """Measure units, links and runtimes on all ranks, and write the profile.

    ``build`` overrides the task's model family.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path, help="file of the task")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--precision", choices=FIELDS["precision"].words, default="fp32")
    parser.add_argument("--microbatches", type=int, nargs="+", required=True, metavar="SAMPLES")
    parser.add_argument("--steps", type=int, required=True, help="steps of each micro-batch")
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
    steps: int,
    build: Build | None = None,
) -> Profile | None:
    """Return the profile of ``task`` on rank 0, and None on others."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with join_ranks(ParallelPlan(dp=ranks)) as device:
        return profile_on(device, task, precision, microbatches, steps, build)


def profile_on(
    device: torch.device,
    task: Task,
    precision: str,
    microbatches: Sequence[int],
    steps: int,
    build: Build | None = None,
) -> Profile | None:
    """Return what `measure` does, on ranks that have joined; a collective."""
    leave_out_compiler()
    set_float32_math(tf32=precision == "tf32")
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    chain = chain_of(task, 0, build)
    profiler = UnitProfiler(chain, task, device, precision=precision)
    alone_s = None
    middle = sorted(microbatches)[len(microbatches) // 2]
    if ranks > 1:
        if own_rank() == 0:
            alone_s = _step_s(*profiler.measure([middle], steps=steps))
        dist.barrier()
    measured = profiler.measure(
        sorted(microbatches), steps=steps, meet=partial(most_of_ranks, device=device)
    )
    times = [mean_of_ranks(each, device) for each in measured]
    together_s = next(_step_s(each) for each in times if each.microbatch == middle)
    train = partial(profiler.step, middle, marked=False)
    transfers = measure_transfers(device) if ranks > 1 else []
    input_s, target_s = _reading_s(task, chain.objective, device, train)
    profile = Profile(
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
    if ranks > 1:
        work = measure_averaging_work(device, train)
        profile = replace(profile, averaging_work=work)
        pass_s, bucket_s = measure_runtimes(chain, task, profile.network(ranks), device, steps)
        profile = replace(profile, pass_s=pass_s, bucket_s=bucket_s)
    return None if own_rank() else profile


def _reading_s(
    task: Task, objective: Objective, device: torch.device, train: Callable[[], object]
) -> tuple[float, float]:
    """Return the seconds of reading the inputs and the targets of a sample, in training.

    ``train`` trains a step, which leaves in the caches what a step does. Both are 0 where worker
    processes read ahead, and where the data are not on this machine.
    """
    if objective.reads_ahead:
        return 0.0, 0.0
    try:
        samples = load(task.data).train
    except UserError:
        return 0.0, 0.0
    count = max(1, task.training.global_batch_size // 2)  # those of one of two replicas
    data = TrainingData(samples, task, 0, Block(1, 1), lambda: None)
    found = []
    for role in (ReadingRole(targets=False), ReadingRole(inputs=False)):
        batches = Input(objective, device, role).train(data, slice(0, count), StepTimer(device))
        seconds = []
        for _ in range(min(_BATCHES, len(task.steps(data.block)))):
            train()
            start = time.perf_counter()
            next(batches)
            seconds.append(time.perf_counter() - start)
        found.append(statistics.median(seconds) / count)
    inputs_s, targets_s = found
    return inputs_s, targets_s


def _step_s(times: UnitTimes) -> float:
    return sum(times.forward_s) + sum(times.backward_s) + times.loss_s + sum(times.update_s)


if __name__ == "__main__":
    main()
