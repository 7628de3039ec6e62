"""What one of two nodes of a test of bytes between nodes does: train with its two ranks.

``python -m tests.engine.node_bytes_worlds NODE CASES``. It prints, for each case, what the node has
sent in three steps, and the bytes of the model's gradients.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.system.host import network_sent_bytes
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED, Family
from tests.engine.worlds import mesh_of

#: most of whose parameters are of a layer that is small to compute
FAMILY = dataclasses.replace(
    FAMILIES["vgg"],
    model={"widths": [8, 16, 16], "depths": [1, 2, 2], "hidden": 1024},
    dtype=torch.float32,
    reads_ahead=False,
)


def sent_under(family: Family, plan: ParallelPlan) -> dict[str, int]:
    """Return the bytes that this node sends in three steps, and the bytes of all gradients."""
    with join_ranks(plan) as device:
        trainer = Trainer(family.chain(), family.task(), plan, mesh_of(plan, device), SEED)
        with closing(trainer):
            trainer.warm_up()
            before = _read()
            trainer.train(family.batches(family.splits()))
            after = _read()
    modules = [unit.module for unit in family.chain().units]
    elements = sum(each.numel() for module in modules for each in module.parameters())
    return {"sent": after - before, "gradients": 4 * elements}


def _read() -> int:
    """Return what the node has sent while no rank sends anything."""
    dist.barrier()
    count = network_sent_bytes()
    assert count is not None
    dist.barrier()
    return count


def main() -> None:
    """Train under each case, with ranks forked for it, and print what the first one counts."""
    node, cases = int(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    for case in cases:
        ranks = [_start(case, rank, is_first=not n) for n, rank in enumerate(case["ranks"][node])]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        assert not any(statuses), statuses


def _start(case: dict[str, Any], rank: int, *, is_first: bool) -> int:
    if process := os.fork():
        return process
    own = {"RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "MASTER_PORT": case["port"]}
    os.environ.update({name: str(value) for name, value in own.items()})
    found = sent_under(FAMILY, ParallelPlan.parse(case["plan"]))
    if is_first:
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
