"""What a rank does in tests of optimisers.

One world trains a small model under every layout that its ranks allow, with every optimiser. Rank 0
leaves the whole parameters, and how many collectives a step of the optimiser took.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.gradients import (
    clip_gradients,
    gradient_norm,
    reduce_partial_gradients,
)
from hybridperf_reference.engine.norms import is_dtensor
from hybridperf_reference.engine.optim import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

    from hybridperf.tasks.task import Optimizer

STEPS = 3
BATCH = 8
_SGD = find_task("resnet/laptop").optimizer
CONFIG: dict[str, Optimizer] = {
    "sgd": _SGD,
    "adamw": dataclasses.replace(_SGD, name="adamw", lr=0.01, weight_decay=0.1),
    "lars": dataclasses.replace(_SGD, name="lars", lr=1.0, trust_coefficient=0.02),
    "lamb": dataclasses.replace(_SGD, name="lamb", lr=0.01, weight_decay=0.1, epsilon=1e-6),
    "clipped": dataclasses.replace(_SGD, clip_norm=0.05),
}
LAYOUTS = {2: ("fsdp", "tp", "sp"), 4: ("fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+sp")}


class Block(nn.Module):
    """A block as transformers have it, small enough that some ranks hold nothing of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 12)
        self.outer = nn.Linear(12, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(nn.functional.gelu(self.inner(self.norm(inputs))))
        return outputs


class Model(nn.Module):
    """Sequences of 4 vectors of 5 numbers to 3 numbers each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Linear(5, 6)
        self.block = Block()
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.block(self.stem(inputs)))
        return outputs


def train(model: nn.Module, config: Optimizer, replica: int, replicas: int) -> list[int]:
    """Train on this replica's share; return how many collectives each optimiser step took."""
    from torch.distributed.tensor.debug import CommDebugMode

    optimizer = build_optimizer(model, config)
    torch.manual_seed(5)
    counts = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 4, 5).chunk(replicas)[replica]
        model(inputs).square().mean().backward()
        with CommDebugMode() as collectives:
            reduce_partial_gradients(model.parameters())
            if config.clip_norm:
                norm = gradient_norm(model.parameters(), stages=None)
                clip_gradients(model.parameters(), norm, config.clip_norm)
            optimizer.step()
        counts.append(collectives.get_total_counts())
        optimizer.zero_grad()
    return counts


def distribute(model: Model, layout: str) -> tuple[int, int]:
    """Spread ``model`` over the ranks; return which replica this rank is part of, of how many."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = dist.get_world_size()
    if layout in {"fsdp", "hsdp"}:
        shape, names = ((world,), ("shard",)) if layout == "fsdp" else ((2, 2), ("copy", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        fully_shard(model.block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return dist.get_rank(), world
    tensors = 2 if "+" in layout else world
    mesh = init_device_mesh("cpu", (world // tensors, tensors), mesh_dim_names=("dp", "tp"))
    _split_tensors(model.block, mesh["tp"], sequence=layout.endswith("sp"))
    if "+" in layout:
        for module in (model.block, model):
            fully_shard(module, mesh=mesh["dp"])
    return mesh.get_local_rank("dp"), world // tensors


def _split_tensors(block: nn.Module, mesh: DeviceMesh, *, sequence: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, object] = {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
    if sequence:
        plan = {
            "norm": SequenceParallel(),
            "inner": ColwiseParallel(input_layouts=Shard(1)),
            "outer": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    parallelize_module(block, mesh, plan)  # type: ignore[arg-type]  # its keys' type is invariant
    if sequence:
        whole, parts = Replicate(), Shard(1)
        inputs = PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(parts,))
        outputs = PrepareModuleOutput(output_layouts=(parts,), desired_output_layouts=(whole,))
        parallelize_module(block, mesh, inputs)
        parallelize_module(block, mesh, outputs)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole parameters."""
    return {
        name: (p.full_tensor() if is_dtensor(p) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def main(folder: Path, cases: Sequence[tuple[str, str]]) -> None:
    """Train under every layout with every optimiser of ``cases``."""
    dist.init_process_group("gloo")
    found = {}
    for layout, name in cases:
        model = Model()
        counts = train(model, CONFIG[name], *distribute(model, layout))
        found[layout, name] = (weights(model), counts)
    if dist.get_rank() == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()
