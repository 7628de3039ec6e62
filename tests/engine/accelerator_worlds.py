"""What a rank of a test of accelerators does; without one it does the same on the processor."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.system.energy import EnergyMeter
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import join_ranks, local_device
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.engine.checkpoint_worlds import MODELS, state_of, train_block
from tests.engine.families import FAMILIES, SEED
from tests.engine.law import block_data
from tests.engine.worlds import mesh_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def communicate(folder: Path) -> None:
    """Leave what each collective of the engine does with the ranks' numbers, and by what."""
    rank, ranks, device = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), local_device()
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, device_id=None if device.type == "cpu" else device)
    own = torch.arange(2.0 * ranks, device=device) + 100 * rank
    total = own.clone()
    dist.all_reduce(total)
    part = own.new_empty(2)
    dist.reduce_scatter_tensor(part, own.clone())
    everything = own.new_empty(2 * ranks**2)
    dist.all_gather_into_tensor(everything, own)
    first = own.clone()
    dist.broadcast(first, 0)
    again, _ = dist.new_subgroups_by_enumeration([list(range(ranks))])
    assert isinstance(again, dist.ProcessGroup), "all ranks are in it"
    other = own.clone()
    dist.all_reduce(other, group=again)
    dist.barrier()
    found = {"total": total, "part": part, "all": everything, "first": first, "other": other}
    numbers = {name: value.tolist() for name, value in found.items()}
    (folder / f"rank_{rank}.json").write_text(
        json.dumps({"backend": dist.get_backend(), "device": device.type} | numbers)
    )
    dist.destroy_process_group()


def save_and_resume(folder: Path, text: str) -> None:
    """Train a block, save, and train another; then load in another trainer, and train that one."""
    plan = ParallelPlan.parse(text)
    with join_ranks(plan) as device:
        states = []
        for seed in (SEED, SEED + 1):
            task = MODELS["vit"].task()
            task = dataclasses.replace(
                task, optimizer=dataclasses.replace(task.optimizer, name="adamw", lr=0.001)
            )
            trainer = Trainer(chain_of(task, seed), task, plan, mesh_of(plan, device), SEED)
            trainer.warm_up()
            if seed == SEED:
                states.append(train_block(trainer, "vit", Block(1, 3)))
                trainer.save(folder / "checkpoint")
            else:
                trainer.load(folder / "checkpoint")
                states.append(state_of(trainer))
            states.append(train_block(trainer, "vit", Block(4, 1)))
            trainer.close()
        torch.save(states, folder / f"rank_{os.environ['RANK']}.pt")


def measure(folder: Path) -> None:
    """Leave the peak memory of a warm-up and of a block, the model's bytes, and the energy."""
    plan, device = ParallelPlan(), local_device()
    row = FAMILIES["vgg"]
    row = dataclasses.replace(
        row, model=row.model | {"hidden": 1024}, dtype=torch.float32, reads_ahead=False
    )
    found: dict[str, Any] = {}
    with (
        closing(Trainer(row.chain(), row.task(), plan, mesh_of(plan, device), SEED)) as trainer,
        closing(EnergyMeter()) as meter,
    ):
        found["model"] = sum(p.nbytes for p in trainer._stage.parameters())
        phases: dict[str, Callable[[], object]] = {
            "warm_up": trainer.warm_up,
            "train": lambda: trainer.train(block_data(row, Block(1, 2))),
        }
        for name, work in phases.items():
            torch.accelerator.reset_peak_memory_stats(device)
            work()
            torch.accelerator.synchronize(device)
            found[name] = torch.accelerator.max_memory_allocated(device)
        found["joules"] = meter.read().joules.get("nvml")
    (folder / "rank_0.json").write_text(json.dumps(found))
