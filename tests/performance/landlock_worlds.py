"""What a rank does whose threads train in turns, ``-m tests.performance.landlock_worlds``.

Its arguments are a task and a folder. Landlock restricts threads: one of three is in it. They train
the same model in the same memory, block by block, each as often first, second and third; how the
two outside differ shows what threads differ by without Landlock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData
from hybridperf.run.sandbox import policy_of
from hybridperf.system.landlock import enter_sandbox
from hybridperf.tasks.data import data_files, load
from hybridperf.tasks.registry import find_task, task_path
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED, build_work
from tests.run_spec import run_spec

SIDES: Final = ("inside", "outside", "control")


def compare(name: str, folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each block of ``name``, of a thread in Landlock and of two outside."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    plan, work = ParallelPlan(dp=ranks), build_work(name)
    splits = load(find_task(name).data)
    spec = run_spec(folder / "run", task_path=str(task_path(name)), mode="sandboxed")
    policy = policy_of(spec, writable=(folder,), ranks=ranks)
    (secret, *_) = data_files(find_task(name).data)
    torch.set_num_threads(1)
    with (
        join_ranks(plan) as device,
        ThreadPoolExecutor(1, initializer=enter_sandbox, initargs=(policy,)) as inside,
        ThreadPoolExecutor(1) as outside,
        ThreadPoolExecutor(1) as control,
    ):
        mesh = build_mesh(plan, device)
        trainer = Trainer(chain_of(work.task, SEED), work.task, plan, mesh, SEED)
        trainer.warm_up()

        def block() -> tuple[float, float]:
            trainer._steps = 0  # the same epoch again
            _meet()
            start_s = time.perf_counter(), time.process_time()
            trainer.train(work.epoch(1))
            trainer.statistics()
            trainer.evaluate(EvaluationData(splits.evaluation.inputs, lambda: None))
            _meet()
            return time.perf_counter() - start_s[0], time.process_time() - start_s[1]

        threads = dict(zip(SIDES, (inside, outside, control), strict=True))
        readable = {each: threads[each].submit(_reads, secret).result() for each in SIDES}
        assert readable == {"inside": False, "outside": True, "control": True}
        found: dict[str, dict[str, list[float]]] = {
            kind: {side: [] for side in threads} for kind in ("wall_s", "processor_s")
        }
        for thread in threads.values():
            thread.submit(block).result()
        orders = list(permutations(SIDES))
        for number in range(rounds):
            for side in orders[number % len(orders)]:
                wall_s, processor_s = threads[side].submit(block).result()
                found["wall_s"][side].append(wall_s)
                found["processor_s"][side].append(processor_s)
    return found


def _reads(path: Path) -> bool:
    try:
        path.open("rb").close()
    except PermissionError:
        return False
    return True


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    left = Path(sys.argv[2])
    seconds = compare(sys.argv[1], left, int(os.environ["HYBRIDPERF_ROUNDS_OF_BLOCKS"]))
    (left / f"rank_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seconds))
