"""What one process computes on the same global batches, without any parallel machinery."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from reference_impls.engine.optim import build_optimizer
from reference_impls.engine.schedule import learning_rate
from reference_impls.engine.stage import Stage
from tests.engine.families import FAMILIES, SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from reference_impls.engine.chain import Objective
    from suite.plan import ParallelPlan
    from suite.tasks.data import Samples

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def expected(family: str, plan: ParallelPlan) -> dict[str, Any]:
    """Return what ``plan`` should compute.

    With BatchNorm, how the batch is cut matters, as docs/plans.md says; else no plan differs.
    """
    if FAMILIES[family].batch_norm:
        return _trained(family, plan.dp, plan.microbatches, plan.bn, plan.precision)
    return _trained(family, 1, 1, "micro", plan.precision)


@functools.cache
def _trained(family: str, dp: int, microbatches: int, bn: str, precision: str) -> dict[str, Any]:
    torch.set_num_threads(1)  # as the ranks: threads add in another order
    row = FAMILIES[family]
    task, splits, objective = row.task(), row.splits(), row.chain().objective
    count = 1 if bn == "sync" else dp
    replicas = [Stage(row.chain().units).train() for _ in range(count)]
    deferred = [_Deferred(replica) for replica in replicas] if bn == "deferred" else []
    optimizers = [build_optimizer(replica, task.optimizer) for replica in replicas]
    losses = []
    scale = 65536.0 if precision == "fp16" else 1.0  # a power of two: it changes no digit
    for batch in row.batches(splits).batches():
        shares = _parts(np.stack([batch.indices, batch.epochs], axis=1), dp, microbatches, bn)
        for replica, parts in zip(replicas, shares, strict=True):
            replica.zero_grad()
            for part in parts:
                inputs, targets = objective.prepare(*_read(objective, splits.train, part))
                with torch.autocast("cpu", NARROW.get(precision), enabled=precision != "fp32"):
                    outputs = replica(inputs)
                loss = objective.loss(outputs, targets)
                (loss * scale / microbatches).backward()
                losses.append(loss.item())
        for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = torch.stack([_gradient(p) / scale for p in parameters]).mean(dim=0)
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter).copy_(mean)  # in its layout
        for statistics in deferred:
            statistics.commit()
        gradients = {name: _gradient(p).clone() for name, p in replicas[0].named_parameters()}
        rate = learning_rate(batch.step, task.steps_per_epoch, task.optimizer)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
    whole = _averaged(replicas).eval()
    with torch.no_grad():
        outputs = whole(objective.evaluation(splits.evaluation.inputs))
    right = objective.predictions(outputs) == torch.from_numpy(splits.evaluation.labels)
    squares = [gradient.double().square().sum() for gradient in gradients.values()]
    return {
        "gradients": gradients,
        "weights": dict(whole.state_dict()),
        "loss": sum(losses) / len(losses),
        "gradient_norm": torch.stack(squares).sum().sqrt().item(),
        "quality": right.double().mean().item(),
    }


def _read(objective: Objective, samples: Samples, part: NDArray[Any]) -> list[Tensor]:
    """Return what is read of the samples in ``part``, rows of index and epoch, one by one."""
    each = [objective.read(samples, row[:1], SEED, int(row[1])) for row in part]
    return [torch.cat(pieces) for pieces in zip(*each, strict=True)]


def _parts(batch: NDArray[Any], dp: int, microbatches: int, bn: str) -> list[list[NDArray[Any]]]:
    """Return the rows of each replica's micro-batches; of all replicas together for ``sync``."""
    cut = batch.reshape(dp, microbatches, -1, batch.shape[1])
    if bn == "sync":
        return [[part.reshape(-1, batch.shape[1]) for part in cut.swapaxes(0, 1)]]
    return [list(replica) for replica in cut]


class _Deferred:
    """Running statistics of BatchNorm, taken from all inputs of a step at once."""

    def __init__(self, replica: nn.Module) -> None:
        self._inputs: dict[nn.BatchNorm2d, list[Tensor]] = {}
        for layer in replica.modules():
            if isinstance(layer, nn.BatchNorm2d):
                self._inputs[layer] = []
                layer.register_forward_pre_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(layer, nn.BatchNorm2d)
        layer.track_running_stats = not layer.training
        if layer.training:
            self._inputs[layer].append(inputs[0].detach())

    def commit(self) -> None:
        for layer, inputs in self._inputs.items():
            whole = torch.cat(inputs)
            inputs.clear()
            layer.track_running_stats = True
            with torch.no_grad():  # a forward pass that nothing but the statistics comes of
                nn.functional.batch_norm(
                    whole, layer.running_mean, layer.running_var, training=True, momentum=0.1
                )
            assert layer.num_batches_tracked is not None
            layer.num_batches_tracked += 1


def _averaged(replicas: list[Stage]) -> Stage:
    states = [replica.state_dict() for replica in replicas]
    for name, value in states[0].items():
        if value.is_floating_point():
            value.copy_(torch.stack([state[name] for state in states]).mean(dim=0))
    return replicas[0]


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
