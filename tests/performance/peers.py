"""Published trainers of two kinds that we have too: torchgpipe, and fairscale's OSS.

Both train plain sequences of our units' modules, as the hand-written scripts do. They are imported
where they are used: a machine without them compares what it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hybridperf.projection.partition import minimax
from hybridperf_reference.engine.parallelize import forward_flops
from tests.performance.handwritten import Script, _build, _optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf_reference.engine.chain import Unit
    from tests.performance.work import Work

__all__ = ["FairscaleOss", "Peer", "TorchGPipe"]


class Peer(Script):
    """A published trainer, as a rank sees it."""

    units: Sequence[Unit]  #: that this rank holds


class TorchGPipe(Peer):
    """torchgpipe (Kim et al. 2020): two stages at our cut, in two threads of the first rank.

    The other rank does nothing: each of its turns is the whole of torchgpipe.
    """

    def __init__(
        self, work: Work, microbatches: int, *, checkpoint: Literal["never", "always"] = "never"
    ) -> None:
        from torchgpipe import GPipe

        chain, model = _build(work)
        (cut,) = minimax(forward_flops(chain.probe()), 2)
        pipeline = GPipe(
            model,
            [cut, len(chain.units) - cut],
            devices=["cpu", "cpu"],
            chunks=microbatches,
            checkpoint=checkpoint,
        )
        super().__init__(work, chain, pipeline, _optimizer(pipeline.parameters(), work.task))
        self.units = chain.units if dist.get_rank() == 0 else ()
        self.replica, self.replicas = 0, 1

    def train_epoch(self, epoch: int) -> None:
        """Train through ``epoch``, on the first rank."""
        if self.units:
            super().train_epoch(epoch)

    def mean_loss(self) -> float | None:
        """Return the mean of an epoch's steps, on the first rank."""
        return super().mean_loss() if self.units else None


class FairscaleOss(Peer):
    """fairscale's OSS: every rank updates its share of the parameters, and broadcasts them.

    `DistributedDataParallel` averages the gradients, whole, on all ranks.
    """

    def __init__(self, work: Work) -> None:
        from fairscale.optim.oss import OSS

        chain, model = _build(work)
        plain, facts = _optimizer(model.parameters(), work.task), work.task.optimizer
        assert isinstance(plain, torch.optim.AdamW), "the task's optimizer is AdamW"
        optimizer = OSS(
            [{key: each[key] for key in ("params", "weight_decay")} for each in plain.param_groups],
            optim=torch.optim.AdamW,
            lr=facts.lr,
            betas=(facts.beta1, facts.beta2),
            eps=facts.epsilon,
            fused=True,
        )
        replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
        super().__init__(work, chain, replica, optimizer)
        self.units = chain.units
