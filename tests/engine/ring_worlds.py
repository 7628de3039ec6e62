"""What a rank does in tests of the ring: its part of attention, and the elements that it sends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.ring import Ring
from tests.engine.bytes_worlds import CountBytes

if TYPE_CHECKING:
    from pathlib import Path

BATCH, FEATURES, SEED = 2, 5, 11


class Case(NamedTuple):
    tokens: int
    heads: int = 3
    dtype: torch.dtype = torch.float64
    dropout: float = 0.0


CASES = {
    "equal parts": Case(16),
    "unequal parts": Case(17),
    "one head": Case(17, heads=1),
    "dropout": Case(17, dropout=0.3),
    "fp32": Case(17, dtype=torch.float32),
    "bf16": Case(17, dtype=torch.bfloat16),
    "fp16": Case(17, dtype=torch.float16),
}


def tensors_of(case: Case) -> list[Tensor]:
    """Return queries, keys, values and the gradient of outputs [batch, head, token, feature]."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (4, BATCH, case.heads, case.tokens, FEATURES)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    return list(drawn.to(case.dtype).unbind())


def main(folder: Path) -> None:
    """Note outputs, gradients and elements sent of each case, with the tokens of this rank."""
    plan = ParallelPlan(cp=int(os.environ["WORLD_SIZE"]))
    found = {}
    with join_ranks(plan) as device:
        mesh = build_mesh(plan, device)
        group = mesh.group("cp")
        assert group is not None
        for name, case in CASES.items():
            whole = tensors_of(case)
            *parts, gradient = (each.chunk(plan.cp, 2)[mesh.cp_rank].clone() for each in whole)
            query, key, value = (part.requires_grad_() for part in parts)
            torch.manual_seed(mesh.cp_rank)
            with CountBytes() as counted:
                outputs = Ring(group, case.tokens)(query, key, value, dropout_p=case.dropout)
                outputs.backward(gradient)
            gradients = [part.grad for part in parts]
            sent = sum(counted.bytes.values())
            found[name] = {"tensors": [outputs.detach(), *gradients], "sent": sent}
        torch.save(found, folder / f"rank_{mesh.cp_rank}.pt")
