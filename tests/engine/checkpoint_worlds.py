"""What a rank of a checkpoint test does.

Worlds of all sizes run at once. Each trains a block under its plans, saves, and trains another;
once all have saved, it resumes from every checkpoint under each of its plans. What BatchNorm does
depends on the plan, so a model that has it resumes under the plan of the checkpoint only.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist

from hybridperf.log.chain import SUMS, format_sums
from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.checkpoint import CheckpointError, save_checkpoint
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.engine.families import FAMILIES, SEED
from tests.engine.worlds import mesh_of, whole

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

PLANS = {
    "resnet": (
        "microbatches=2",
        "pp=2,schedule=zbv,microbatches=4",
        "dp=4,zero=1,shard=2",
    ),
    "vit": (
        "dp=1",
        "tp=2",
        "dp=2,zero=3",
        "dp=2,tp=2",
        "pp=2,tp=2",
        "pp=4,schedule=gpipe,microbatches=4",
        "tp=4,tensor=2d",
        "tp=8,tensor=2.5d",
        "tp=8,tensor=3d",
        "cp=2",
        "cp=2,tp=2",
    ),
    "bert_tied": (
        "dp=1",
        "dp=2",
        "pp=2",
        "dp=2,pp=2,zero=1",
        "dp=2,zero=3",
    ),
}
# Every load takes time for each tensor: as few layers as stages need.
MODELS = {
    family: dataclasses.replace(FAMILIES[family].of(ParallelPlan(pp=3)), steps=3)
    for family in PLANS
}
CASES = [(family, number) for family, plans in PLANS.items() for number in range(len(plans))]
FIRST, SECOND = Block(1, 3), Block(4, 1)  # between them, half a batch of epoch 3 is left
STEPS = (4, 6)  # after each
LONGEST_WAIT_S = 1200


def trainer_of(family: str, number: int, device: torch.device, seed: int) -> Trainer:
    """Return the trainer of a plan; all but ResNet by AdamW, which has state of three kinds."""
    plan, task = ParallelPlan.parse(PLANS[family][number]), MODELS[family].task()
    if family != "resnet":
        optimizer = dataclasses.replace(task.optimizer, name="adamw", lr=0.001)
        task = dataclasses.replace(task, optimizer=optimizer)
    chain = chain_of(task, seed)
    for unit in chain.units if family == "bert_tied" else ():
        unit.module.double()  # in fp32, what the relation's head learns is rounded by 1e-5
    return Trainer(chain, task, plan, mesh_of(plan, device), SEED)


def train_block(trainer: Trainer, family: str, block: Block) -> dict[str, Any]:
    """Train through ``block`` and return what this rank holds then."""
    task, splits = MODELS[family].task(), MODELS[family].splits()
    trainer.train(TrainingData(splits.train, task, SEED, block, on_batch=lambda: None))
    trainer.evaluate(EvaluationData(splits.evaluation.inputs, on_batch=lambda: None))
    return state_of(trainer) | {"loss": trainer.statistics()["loss"]}


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Return whole weights, buffers and optimiser state of what this rank holds."""
    weights = {name: value.clone() for name, value in trainer.weights().items()}
    moments: dict[str, torch.Tensor] = {}
    for name, parameter in trainer._stage.named_parameters():
        for key, value in trainer._update.optimizer.state[parameter].items():
            known_as = f"{trainer._stage.global_name(name)} {key}"
            known = moments.setdefault(known_as, whole(value))
            assert torch.equal(known, whole(value)), f"copies differ in {known_as}"
    trainer._part.shared.require_equal()
    return {"weights": weights, "moments": moments, "steps": trainer._steps}


def save_slowly(trainer: Trainer, folder: Path) -> bool:
    """Save while rank 0 takes its time, and return whether this rank then finds its last file."""

    def format_late(sums: dict[str, str]) -> str:
        time.sleep(0.3)
        return format_sums(sums)

    with mock.patch(f"{save_checkpoint.__module__}.format_sums", format_late):
        trainer.save(folder)
    return (folder / SUMS).is_file()


def try_damaged(folder: Path, device: torch.device, rank: str) -> None:
    """Note what this rank says of a checkpoint of which a byte is changed on rank 0 alone."""
    damaged = folder / "damaged"
    if rank == "0":
        shutil.copytree(folder / "vit_1", damaged)
        (path,) = damaged.glob("__1_*")  # rank 0 verifies this one: it is the second of five
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    dist.barrier()
    try:
        trainer_of("vit", 1, device, SEED).load(damaged)
    except CheckpointError as error:
        (folder / f"damaged_rank_{rank}.txt").write_text(str(error))


def main(folder: Path, pairs: Collection[tuple[str, int, int]]) -> None:
    """Save under every plan of as many ranks as there are; then load what ``pairs`` say.

    Each is of a family, the plan that saved, and the one that loads.
    """
    rank, ranks = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
    own = [case for case in CASES if ParallelPlan.parse(PLANS[case[0]][case[1]]).ranks == ranks]
    with join_ranks(ParallelPlan(dp=ranks)) as device:
        for family, number in own:
            trainer = trainer_of(family, number, device, SEED)
            trainer.warm_up()
            saved = train_block(trainer, family, FIRST)
            saved["whole"] = save_slowly(trainer, folder / f"{family}_{number}")
            after = train_block(trainer, family, SECOND)
            torch.save((saved, after), folder / f"{family}_{number}_rank_{rank}.pt")
            (folder / f"{family}_{number}_done").touch()
        deadline_s = time.monotonic() + LONGEST_WAIT_S
        while len(list(folder.glob("*_done"))) < len(CASES):
            assert time.monotonic() < deadline_s, "another world has not saved"
            time.sleep(0.1)
        for family, number in own:
            for other in range(len(PLANS[family])):
                if (family, other, number) not in pairs:
                    continue
                trainer = trainer_of(family, number, device, SEED + 1)
                if other == number:  # a third of the time, which the others need not take as well
                    trainer.warm_up()
                goes_on = other == number or not MODELS[family].batch_norm
                trainer.load(folder / f"{family}_{other}")
                states = [state_of(trainer)]
                if goes_on:
                    states.append(train_block(trainer, family, SECOND))
                torch.save(states, folder / f"{family}_{other}_as_{number}_rank_{rank}.pt")
        if ranks == 2:
            try_damaged(folder, device, rank)
