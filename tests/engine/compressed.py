"""A pipeline with compressed links in one process: stages in turn, with the codec between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.link import LINK_CODECS, LinkKey
from hybridperf_reference.engine.optim import build_optimizer, learning_rate
from hybridperf_reference.engine.parallelize import chain_units, stage_slices
from hybridperf_reference.engine.precision import set_float32_math
from tests.engine.families import SEED
from tests.engine.law import BLOCKS, block_data, read_rows

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from tests.engine.families import Family


def compressed_weights(row: Family, plan: ParallelPlan, device: torch.device) -> dict[str, Tensor]:
    """Return the weights after all steps of a plan with one replica, on a processor to the bit.

    The optimizer is the engine's, since what is emulated are stages, links and versions. The draws
    of int8 depend on the kind of ``device``.
    """
    torch.set_num_threads(1)
    set_float32_math(tf32=False)
    chain, task = row.chain(), row.task()
    objective = chain.objective
    cuts = stage_slices(plan, chain_units(chain, chain.probe()))
    stages = [Stage(chain.units[cut]).train().to(device) for cut in cuts]
    optimizers = [build_optimizer(stage, task.optimizer) for stage in stages]
    versions = [[_weights(stage) for stage in stages]]
    for block in BLOCKS:
        for batch in block_data(row, block).batches():
            seen = versions[max(0, batch.step - plan.staleness)]
            leaves = [{n: w.clone().requires_grad_() for n, w in part.items()} for part in seen]
            rows = np.stack([batch.indices, batch.epochs], axis=1)
            inputs, targets = (each.to(device) for each in read_rows(row, rows))
            count, parts = torch.as_tensor(objective.count(targets)), plan.microbatches
            for number in range(parts):
                values = inputs.chunk(parts)[number]
                for index, (stage, own) in enumerate(zip(stages, leaves, strict=True)):
                    if index:
                        key = LinkKey(SEED, batch.step, number, index, gradient=False)
                        values = _Link.apply(values, plan.links, key)
                    values = functional_call(stage, own, (values,))
                (objective.loss(values, targets.chunk(parts)[number]) / count).backward()
            rate = learning_rate(batch.step, task.steps_per_epoch, task.optimizer)
            for stage, own, optimizer in zip(stages, leaves, optimizers, strict=True):
                for name, parameter in stage.named_parameters():
                    parameter.grad = own[name].grad
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
            versions.append([_weights(stage) for stage in stages])
    return {name: w.cpu() for part in versions[-1] for name, w in part.items()}


def _weights(stage: Stage) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}


class _Link(torch.autograd.Function):
    """What a link does to activations, and on the way back to their gradients."""

    @staticmethod
    def forward(context: Any, values: Tensor, links: str, key: LinkKey) -> Tensor:
        context.links, context.key = links, key
        return _across(values, links, key)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        key = context.key._replace(gradient=True)
        return _across(gradients[0].contiguous(), context.links, key), None, None


def _across(values: Tensor, links: str, key: LinkKey) -> Tensor:
    codec = LINK_CODECS[links]
    return codec.decode(codec.encode(values, key), values.shape, values.dtype).clone()
