"""What one process computes on the same global batches, without any parallel machinery."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # what all of torch's have in common

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.optim import build_optimizer, learning_rate
from tests.engine.families import FAMILIES, SEED
from tests.engine.odd_models import ODD
from tests.engine.simulated_streams import SimulatedStreams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf_reference.engine.chain import Objective
    from tests.engine.families import Family

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def expected(family: str, plan: ParallelPlan) -> dict[str, Any]:
    """Return what ``plan`` should compute.

    With BatchNorm, how the batch is cut matters, as docs/plans.md says, and with dropout also
    which part of it a rank drops; else no plan differs.
    """
    row = (FAMILIES | ODD)[family].of(plan)
    same = ParallelPlan(precision=plan.precision)
    if row.batch_norm or row.dropout:
        same = dataclasses.replace(same, dp=plan.dp, microbatches=plan.microbatches, bn=plan.bn)
    if row.dropout:
        same = dataclasses.replace(same, tp=plan.tp, sp=plan.sp, cp=plan.cp, tensor=plan.tensor)
    return _trained(row, same)


@functools.cache
def _trained(row: Family, plan: ParallelPlan) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        streams = SimulatedStreams(SEED, plan)
        if row.dropout:
            streams.patch(patch)
        return _train(row, plan, streams)


def _train(row: Family, plan: ParallelPlan, streams: SimulatedStreams) -> dict[str, Any]:
    torch.set_num_threads(1)  # as the ranks: threads add in another order
    dp, microbatches, bn, precision = plan.dp, plan.microbatches, plan.bn, plan.precision
    task, splits, objective = row.task(), row.splits(), row.chain().objective
    count = 1 if bn == "sync" else dp
    chains = [row.chain() for _ in range(count)]
    for chain in chains if row.dropout else ():
        for number, unit in enumerate(chain.units):
            streams.follow(number, unit)
    replicas = [Stage(chain.units).train() for chain in chains]
    deferred = [DeferredStatistics(replica) for replica in replicas] if bn == "deferred" else []
    optimizers = [build_optimizer(replica, task.optimizer) for replica in replicas]
    losses = []
    scale = 65536.0 if precision == "fp16" else 1.0  # a power of two: it changes no digit
    for batch in row.batches(splits).batches():
        shares = cut_batch(np.stack([batch.indices, batch.epochs], axis=1), dp, microbatches, bn)
        rows = np.stack([batch.indices, batch.epochs], axis=1)
        everything = objective.count(read_samples(objective, splits.train, rows)[1])
        losses.append(0.0)
        streams.step = batch.step
        for number, (replica, parts) in enumerate(zip(replicas, shares, strict=True)):
            replica.zero_grad()
            for part_number, part in enumerate(parts):
                streams.micro_batch = number * microbatches + part_number
                inputs, targets = read_samples(objective, splits.train, part)
                with torch.autocast("cpu", NARROW.get(precision), enabled=precision in NARROW):
                    outputs = replica(inputs)
                loss = (objective.loss(outputs, targets) / torch.as_tensor(everything)).sum()
                (loss * scale * count).backward()
                losses[-1] += loss.item()
        for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
            if not parameters[0].requires_grad:
                continue
            mean = torch.stack([_gradient(p) / scale for p in parameters]).mean(dim=0)
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter).copy_(mean)  # in its layout
        for statistics in deferred:
            statistics.commit()
        norm = _clip(replicas, task.optimizer.clip_norm)
        named = replicas[0].named_parameters()
        gradients = {
            replicas[0].global_name(n): p.grad.clone() for n, p in named if p.grad is not None
        }
        rate = learning_rate(batch.step, task.steps_per_epoch, task.optimizer)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
    whole = _averaged(replicas).eval()
    with torch.no_grad():
        outputs = whole(objective.evaluation(splits.evaluation.inputs))
    right = objective.predictions(outputs) == torch.from_numpy(splits.evaluation.labels)
    return {
        "gradients": gradients,
        "weights": dict(whole.state_dict()),
        "loss": sum(losses) / len(losses),
        "gradient_norm": norm,
        "quality": right.double().mean().item(),
    }


def _clip(replicas: list[Stage], most: float) -> float:
    """Scale gradients down to the norm ``most`` where it is not 0; return their norm before."""
    trained = [p for p in replicas[0].parameters() if p.grad is not None]
    squares = [_gradient(p).double().square().sum() for p in trained]
    norm = torch.stack(squares).sum().sqrt().item()
    for replica in replicas if most else ():
        for parameter in replica.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(min(1.0, most / norm))
    return norm


def read_samples(
    objective: Objective, samples: Samples, part: NDArray[Any]
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the samples in ``part``, rows of index and epoch, one by one."""
    each = [(samples, row[:1], SEED, int(row[1])) for row in part]
    stored = zip(*(objective.read(*which) for which in each), strict=True)
    targets = torch.cat([objective.targets(*which) for which in each])
    return objective.prepare(*map(torch.cat, stored)), targets


def cut_batch(batch: NDArray[Any], dp: int, microbatches: int, bn: str) -> list[list[NDArray[Any]]]:
    """Return the rows of each replica's micro-batches; of all replicas together for ``sync``."""
    cut = batch.reshape(dp, microbatches, -1, batch.shape[1])
    if bn == "sync":
        return [[part.reshape(-1, batch.shape[1]) for part in cut.swapaxes(0, 1)]]
    return [list(replica) for replica in cut]


class DeferredStatistics:
    """Running statistics of BatchNorm, taken from all inputs of a step at once."""

    def __init__(self, replica: nn.Module) -> None:
        self._inputs: dict[_BatchNorm, list[Tensor]] = {}
        for layer in replica.modules():
            if isinstance(layer, _BatchNorm):
                self._inputs[layer] = []
                layer.register_forward_pre_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(layer, _BatchNorm)
        layer.track_running_stats = not layer.training
        if layer.training:
            self._inputs[layer].append(inputs[0].detach())

    def commit(self) -> None:
        for layer, inputs in self._inputs.items():
            if not inputs:  # skipped in this step
                continue
            whole = torch.cat(inputs)
            inputs.clear()
            layer.track_running_stats = True
            with torch.no_grad():  # a forward pass that nothing but the statistics comes of
                _BatchNorm.forward(layer, whole)


def _averaged(replicas: list[Stage]) -> Stage:
    states = [replica.state_dict() for replica in replicas]
    for name, value in states[0].items():
        if value.is_floating_point():
            value.copy_(torch.stack([state[name] for state in states]).mean(dim=0))
    return replicas[0]


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of ``parameter``, which is zero where nothing used it."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
