"""What a rank of a memory measurement does: ``-m tests.performance.memory_worlds <plan> <folder>``.

It leaves by how much its resident memory grew at most, from before the model was built, during
a training step; and what docs/plans.md says that this is made of.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Mesh, build_mesh, join_ranks
from hybridperf_reference.engine.parallelize import chain_units, stage_slices
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED, Work, build_work

LAYERS = 6
MODEL = {"hidden": 384, "inner": 1536, "heads": 6, "layers": LAYERS, "tokens": 128}


def measure(text: str, folder: Path) -> None:
    """Train under the plan ``text``; leave the peak and the theory, in bytes."""
    torch.set_num_threads(1)
    plan = ParallelPlan.parse(text)
    with join_ranks(plan) as device:
        mesh = build_mesh(plan, device)
        _train(build_work("bert/laptop", steps=1), plan, mesh)  # load what is loaded once
        gc.collect()
        before = _resident("VmRSS")
        work = wide_bert()
        _train(work, plan, mesh)
        peak = _resident("VmHWM") - before
        mesh.barrier()
    found = {"peak": peak, **theory(work, plan, mesh.pp_rank)}
    (folder / f"rank_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def wide_bert() -> Work:
    """Return a BERT of 10.8 M parameters, and one step of 16 samples an epoch."""
    work = build_work("bert/laptop", steps=1, model=MODEL)
    units = ("embeddings", *(f"layers.{number}" for number in range(LAYERS)), "head")
    return Work(dataclasses.replace(work.task, units=units), work.samples)


def theory(work: Work, plan: ParallelPlan, stage: int) -> dict[str, int]:
    """Return the bytes on a rank of ``stage``: W, G, O and activations, by docs/plans.md.

    A unit's activations are what a forward pass of one micro-batch saves for the backward pass.
    """
    chain = chain_of(work.task, SEED)
    share = work.task.training.global_batch_size // plan.dp // plan.microbatches
    inputs, _ = chain.example(share)
    parameters, saved, outputs = [], [], []
    seen: set[int] = set()
    for unit in chain.units:
        own = list(unit.module.parameters())
        seen |= {p.untyped_storage().data_ptr() for p in own}
        inputs, bytes_saved = _saved_by(unit.module, inputs, seen)
        parameters.append(sum(map(_bytes, own)))
        saved.append(bytes_saved)
        outputs.append(_bytes(inputs))
    cut = stage_slices(plan, chain_units(chain, chain.probe()))[stage]
    weights = sum(parameters[cut])
    alive = plan.microbatches if plan.schedule == "gpipe" else plan.pp - stage
    activations = sum(saved[cut]) * (alive if plan.pp > 1 else 1)
    if plan.recompute:
        activations = max(saved[cut]) + sum(outputs[cut])
    shards = plan.shards if plan.zero else 1
    gathered = sum(sorted(parameters[cut])[-2:]) if plan.zero == 3 else 0
    return {
        "W": weights // (shards if plan.zero == 3 else 1) + gathered,
        "G": weights // (shards if plan.zero >= 2 else 1),
        "O": 2 * weights // shards,
        "A": activations,
    }


def _train(work: Work, plan: ParallelPlan, mesh: Mesh) -> None:
    """Take two steps: in the first the optimiser's state comes to be, the second is measured."""
    trainer = Trainer(chain_of(work.task, SEED), work.task, plan, mesh, SEED)
    trainer.train(work.epoch(1))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    trainer.train(work.epoch(2))


def _saved_by(module: nn.Module, inputs: Tensor, seen: set[int]) -> tuple[Tensor, int]:
    """Return outputs, and the bytes of storages saved for backward that are not among ``seen``."""
    total = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs: Tensor = module(inputs)
    return outputs, total


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _resident(field: str) -> int:
    """Return a number of this process's memory, in bytes: resident now, or at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2]))
