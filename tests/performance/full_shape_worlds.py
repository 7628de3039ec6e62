"""What measures one full-size model: ``-m tests.performance.full_shape_worlds <case> <folder>``.

The trainer's own loop runs on samples that are on the device already. Beside each of its rounds
stands a measurement of the fastest matrix products, in the same number format. On the processor all
is one thread, whose own time is taken: what else the machine does is not in it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybridperf.plan import ParallelPlan
from hybridperf.system.accelerators import usable_devices
from hybridperf.system.catalog import find_accelerator
from hybridperf.tasks.data import Samples
from hybridperf_reference.engine.mesh import build_mesh, local_device
from hybridperf_reference.engine.parallelize import forward_flops
from hybridperf_reference.engine.precision import DTYPES
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.full_shape_cases import ACCELERATOR, CASES, PROCESSOR
from tests.performance.work import SEED, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain, Objective
    from tests.performance.full_shape_cases import Limit


class Standing:
    """An objective whose samples are on the device already, the same in every step."""

    reads_ahead = False

    def __init__(self, objective: Objective, samples: tuple[Tensor, ...]) -> None:
        self._samples = samples
        self.evaluation, self.predictions = objective.evaluation, objective.predictions
        self.loss, self.count = objective.loss, objective.count

    def read(self, *_: Any) -> tuple[Tensor, ...]:
        """Return the inputs."""
        return self._samples[:1]

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return them as they are."""
        (inputs,) = stored
        return inputs

    def targets(self, *_: Any) -> Tensor:
        """Return the targets."""
        return self._samples[1]


class Training:
    """The trainer, as the harness uses it between two evaluations."""

    def __init__(self, chain: Chain, task: Task, plan: ParallelPlan, device: torch.device) -> None:
        inputs, targets = chain.example(task.training.global_batch_size)
        # Of two kinds, which every model tells apart: from one kind alone nothing is left to learn.
        samples = inputs.to(device), torch.randint_like(targets, 2).to(device)
        chain = dataclasses.replace(chain, objective=Standing(chain.objective, samples))
        unread = np.zeros(task.data.train_samples, dtype=np.int64)
        self._work, self._rounds = Work(task, Samples(unread, unread)), 0
        self._trainer = Trainer(chain, task, plan, build_mesh(plan, device), SEED)
        self._trainer.warm_up()

    def run(self) -> None:
        """Take the steps of a round."""
        self._rounds += 1
        self._trainer.train(self._work.epoch(self._rounds))

    def loss(self) -> float:
        """Return the mean since the last call."""
        facts = self._trainer.statistics()
        assert facts["losses_not_finite"] == 0
        assert isinstance(facts["loss"], float)
        return facts["loss"]


class Products:
    """Matrix products of the sizes of ``limit``."""

    def __init__(self, limit: Limit, dtype: torch.dtype, device: torch.device) -> None:
        self._limit, self._device = limit, device
        self._factors = [torch.randn(n, n, device=device).to(dtype) for n in limit.sides]
        self._product = torch.empty(max(limit.sides) ** 2, dtype=dtype, device=device)

    def best_flops_per_s(self) -> float:
        """Return the rate of the size that is fastest."""
        return max(map(self._flops_per_s, self._factors))

    def _flops_per_s(self, factor: Tensor) -> float:
        flops = 2 * len(factor) ** 3
        count = max(1, round(self._limit.flops / flops))
        product = self._product[: factor.numel()].view_as(factor)

        def multiply() -> None:
            for _ in range(count):
                torch.mm(factor, factor, out=product)

        return count * flops / _seconds(multiply, self._device)


def measure(name: str, folder: Path) -> None:
    """Train the case ``name`` and leave what was found."""
    case, device = CASES[name], local_device()
    on_processor = device.type == "cpu"
    setting = case.processor if on_processor else case.accelerator
    plan, task = ParallelPlan.parse(setting.plan), case.task(setting)
    chain = chain_of(task, SEED)
    flops = sum(forward_flops(chain.probe()))
    products = Products(PROCESSOR if on_processor else ACCELERATOR, DTYPES[plan.precision], device)
    training = Training(chain, task, plan, device)
    losses, step_s, limits = [], [], []
    for number in range(setting.rounds + 1):
        best, round_s = products.best_flops_per_s(), _seconds(training.run, device)
        losses.append(training.loss())
        if number > 0:  # the first one warms up
            limits.append(best)
            step_s.append(round_s / setting.steps)
    name_of_device = usable_devices().name
    known = find_accelerator(name_of_device)
    peak_tflops = known.peak_tflops.get(plan.precision) if known else None
    found = {
        "device": name_of_device,
        "peak_flops_per_s": peak_tflops * 1e12 if peak_tflops else None,
        "plan": str(plan),
        "batch": setting.batch,
        "forward_flops": flops,
        "step_s": step_s,
        "best_product_flops_per_s": limits,
        "losses": losses,
    }
    (folder / "rank_0.json").write_text(json.dumps(found))


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return how long ``work`` takes: on the processor, of its own time."""
    if device.type == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.accelerator.synchronize(device)
    start = time.perf_counter()
    work()
    torch.accelerator.synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2]))
