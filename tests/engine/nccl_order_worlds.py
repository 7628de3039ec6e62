"""What a rank of a test of NCCL's order does: train under plans, and record what it issues."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from typing import TYPE_CHECKING

import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED, Family
from tests.engine.law import block_data, delayed_family
from tests.engine.quality import quality_of
from tests.engine.recorded_groups import recorded_groups, write_trace
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLIP_NORM = 0.5  #: so that every step takes the norm of the whole model
#: The first has updates that passes wait for, whatever the staleness.
DELAYED_BLOCKS = (Block(1, 3), Block(4, 1))
BLOCKS = (Block(1, 1), Block(2, 1))


def record_all(folder: Path, items: Sequence[str]) -> None:
    """Train two blocks, with an evaluation after each, under items such as ``vit:dp=2``."""
    pairs = [item.split(":") for item in items]
    with recorded_groups(), join_ranks(ParallelPlan.parse(pairs[0][1])) as device:
        for number, (name, text) in enumerate(pairs):
            plan = ParallelPlan.parse(text)
            family, blocks = _clipped(FAMILIES[name]).of(plan), BLOCKS
            if plan.delays_or_compresses:
                family = delayed_family(name, "sgd", clip=CLIP_NORM, fp32=True).of(plan)
                blocks = DELAYED_BLOCKS
            mesh = mesh_of(plan, device)
            with closing(Trainer(family.chain(), family.task(), plan, mesh, SEED)) as trainer:
                for block in blocks:
                    trainer.train(block_data(family, block))
                    trainer.statistics()
                    quality_of(trainer, family.splits().evaluation)
                trainer.weights()
            dist.barrier()
            write_trace(folder / f"item_{number}_rank_{os.environ['RANK']}.json")


def _clipped(family: Family) -> Family:
    options = dict(family.optimizer) | {"clip_norm": CLIP_NORM}
    return dataclasses.replace(family, optimizer=options, reads_ahead=False)
