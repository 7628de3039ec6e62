"""What a PyTorch user would write by hand: one short script for each way to train.

Their models are plain sequences of our units' modules, except where a script says so. Inputs are
read and moved by the objective's own functions, and the rate follows the task's schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torchvision
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from hybridperf_reference.engine.optim import learning_rate
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain
    from tests.performance.work import Work

__all__ = ["Pipeline", "Script", "ddp", "fsdp2", "single", "torchvision_loop"]


class Script:
    """Forward, backward, step."""

    def __init__(
        self, work: Work, chain: Chain, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.work, self.objective = work, chain.objective
        self.model, self.optimizer = model, optimizer
        self.total = torch.zeros(())
        self.scheduler = _scheduler(optimizer, work.task)
        self.images = work.task.family not in {"bert", "vit"}
        self.replica, self.replicas = 0, 1
        if dist.is_initialized():
            self.replica, self.replicas = dist.get_rank(), dist.get_world_size()

    def train_epoch(self, epoch: int) -> None:
        """Train through ``epoch``."""
        self.model.train()
        batches = self.work.batches(self.objective, epoch, self.replica, self.replicas)
        for inputs, targets in batches:
            loss = self.mean(self.model(self.laid_out(inputs)), targets)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.total += loss.detach()

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the targets."""
        counts = torch.as_tensor(self.objective.count(targets))
        return (self.objective.loss(outputs, targets) / counts).sum()

    def mean_loss(self) -> float | None:
        """Return the mean of an epoch's steps."""
        mean = self.total.item() / self.work.task.steps_per_epoch
        self.total.zero_()
        return mean

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Return images channels-last."""
        return inputs.to(memory_format=torch.channels_last) if self.images else inputs


def single(work: Work) -> Script:
    """One process."""
    chain, model = _build(work)
    return Script(work, chain, model, _optimizer(model.parameters(), work.task))


def ddp(work: Work) -> Script:
    """Replicas whose gradients are averaged."""
    chain, model = _build(work)
    optimizer = _optimizer(model.parameters(), work.task)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Script(work, chain, replica, optimizer)


def fsdp2(work: Work) -> Script:
    """Replicas that share out parameters, gradients and optimiser state, layer by layer."""
    chain, model = _build(work)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return Script(work, chain, model, _optimizer(model.parameters(), work.task))


class Pipeline(Script):
    """Two stages by 1F1B."""

    def __init__(self, work: Work, cut: int, microbatches: int) -> None:
        chain, model = _build(work)
        self.rank = dist.get_rank()
        boundary = chain.probe().boundaries[cut]
        size = work.task.training.global_batch_size // microbatches
        edge = torch.empty(size, *boundary.shape, requires_grad=True)
        example = chain.example(size)[0]
        outputs = torch.empty(size, *chain.probe().boundaries[-1].shape)
        own = model[:cut] if self.rank == 0 else model[cut:]
        super().__init__(work, chain, own, _optimizer(own.parameters(), work.task))
        self.replica, self.replicas = 0, 1
        stage = PipelineStage(
            own,
            self.rank,
            2,
            torch.device("cpu"),
            input_args=(example if self.rank == 0 else edge,),
            output_args=(edge if self.rank == 0 else outputs,),
        )
        self.schedule = Schedule1F1B(stage, microbatches, loss_fn=self.mean)

    def train_epoch(self, epoch: int) -> None:
        """Train through ``epoch``; the last stage computes the loss."""
        self.model.train()
        for inputs, targets in self.work.batches(self.objective, epoch):
            losses: list[Tensor] = []
            if self.rank == 0:
                self.schedule.step(self.laid_out(inputs), return_outputs=False)
            else:
                self.schedule.step(target=targets, losses=losses, return_outputs=False)
                self.total += torch.stack(losses).mean().detach()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def mean_loss(self) -> float | None:
        """Return the mean of an epoch's steps, on the last stage."""
        return super().mean_loss() if self.rank == 1 else None


class _Plain(Script):
    """Images as they come, contiguous."""

    def laid_out(self, inputs: Tensor) -> Tensor:
        return inputs


def torchvision_loop(work: Work, *, tuned: bool) -> Script:
    """torchvision's ResNet-18 with the task's weights, by the settings of its reference script.

    ``tuned``: channels-last, and a fused optimiser.
    """
    chain, _ = _build(work)
    model = torchvision.models.resnet18(num_classes=10)
    names = {"stem.conv.": "conv1.", "stem.bn.": "bn1.", "head.": ""}
    state = {
        f"{unit.name}.{name}": value
        for unit in chain.units
        for name, value in unit.module.state_dict().items()
    }
    for ours, theirs in names.items():
        state = {name.replace(ours, theirs, 1): value for name, value in state.items()}
    model.load_state_dict(state)
    if tuned:
        model = model.to(memory_format=torch.channels_last)
        return Script(work, chain, model, _optimizer(model.parameters(), work.task))
    optimizer = _optimizer(model.parameters(), work.task, fused=False)
    return _Plain(work, chain, model, optimizer)


def _build(work: Work) -> tuple[Chain, nn.Sequential]:
    chain = chain_of(work.task, SEED)
    return chain, nn.Sequential(*(unit.module for unit in chain.units))


def _optimizer(
    parameters: Iterable[nn.Parameter], task: Task, *, fused: bool = True
) -> torch.optim.Optimizer:
    own, facts = list(parameters), task.optimizer
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.dim() > 1], "weight_decay": facts.weight_decay},
        {"params": [p for p in own if p.dim() == 1], "weight_decay": 0.0},
    ]
    if facts.name == "adamw":
        betas = facts.beta1, facts.beta2
        return torch.optim.AdamW(groups, lr=facts.lr, betas=betas, eps=facts.epsilon, fused=fused)
    return torch.optim.SGD(
        groups, lr=facts.lr, momentum=facts.momentum, nesterov=facts.nesterov, fused=fused
    )


def _scheduler(optimizer: torch.optim.Optimizer, task: Task) -> torch.optim.lr_scheduler.LambdaLR:
    def factor(step: int) -> float:
        return learning_rate(step, task.steps_per_epoch, task.optimizer) / task.optimizer.lr

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
