"""The device mesh of a plan: its axes, this rank's coordinates, and the process groups."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hybridperf.plan import ParallelPlan

__all__ = [
    "Groups",
    "Mesh",
    "build_mesh",
    "coordinates",
    "join_ranks",
    "local_device",
    "own_rank",
    "uses_fsdp",
    "wait_for_gloo",
]

# The mesh axes of each part of a plan's `order`, with their sizes. Ranks whose coordinates differ
# on one axis only form a process group. The DeviceMesh has its axes in this order, whatever the
# plan's: FSDP needs the axes of dp before tp.
_AXES: Final[Mapping[str, Mapping[str, Callable[[ParallelPlan], int]]]] = {
    "pp": {"pp": lambda plan: plan.pp},
    "dp": {
        "replicate": lambda plan: plan.dp // plan.shards,
        "shard": lambda plan: plan.shards,
    },
    "tp": {"cp": lambda plan: plan.cp, "tp": lambda plan: plan.tp},
}


@dataclass(frozen=True, slots=True)
class Mesh:
    """A rank's device, coordinates and process groups; ``replicate`` and ``shard`` form dp."""

    device: torch.device
    axes: DeviceMesh | None  #: axes with more than one rank, and FSDP's; None with one rank
    replica: int = 0  #: coordinate on dp
    pp_rank: int = 0  #: coordinate on the axis pp
    cp_rank: int = 0  #: coordinate on the axis cp
    tp_rank: int = 0  #: coordinate on the axis tp
    groups: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)
    #: groups by axis, for axes with more than one rank; DeviceMesh.get_group takes milliseconds
    pipelines: Sequence[Sequence[int]] = ()  #: the ranks of each pipeline, by stage of the mesh
    arrangement: DeviceMesh | None = None
    #: the ranks of this tp group on the axes of the plan's ``tensor``; None under 1d
    made: Groups = field(default_factory=lambda: Groups())  # defined below
    #: all groups that this process has made

    @property
    def is_first_of_stage(self) -> bool:
        """Return whether this is the first of the ranks of a stage, which have equal outputs."""
        return self.cp_rank == 0 and self.tp_rank == 0

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Return the process group along ``axis`` that contains this rank; None if it is alone."""
        return self.groups.get(axis)

    def replica_groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that together hold all replicas of this rank's tensors."""
        groups = (self.group(axis) for axis in ("replicate", "shard"))
        return [group for group in groups if group is not None]

    def link_group(self, sender: int, receiver: int) -> dist.ProcessGroup:
        """Return the group of two ranks for a program's messages from stage to stage.

        NCCL executes the operations of a group one after another, in issue order. A link posts a
        receive ahead, so any other operation in its group could deadlock: every link has its own
        group, and norms use the pipeline's.
        """
        return self.groups[_link(sender, receiver)]

    def stages_group(self, pp_ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Return the group of some ranks of this pipeline; None if this rank is none of them.

        ``pp_ranks`` are their coordinates on the axis pp, in ascending order. A collective over all
        ranks, which must ask for equal coordinates.
        """
        if len(pp_ranks) == len(self.pipelines[0]):
            return self.pp_group
        parts = [[ranks[at] for at in pp_ranks] for ranks in self.pipelines]
        return self.made.own(parts, "some stages")

    @property
    def pp_group(self) -> dist.ProcessGroup | None:
        """Return the process group of this replica's pipeline stages; None without a pipeline.

        All stages issue its operations in one order: norms, predictions, torch's runtimes.
        """
        return self.group("pp")

    def barrier(self) -> None:
        """Wait for all ranks."""
        if dist.is_initialized():
            dist.barrier()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum ``values`` [...] over all ranks in place, and return them."""
        if dist.is_initialized():
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the ``values`` [...] of every rank, in rank order; all have the same shape."""
        if not dist.is_initialized():
            return [values]
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        return parts


def local_device() -> torch.device:
    """Return this rank's device: the accelerator ``LOCAL_RANK`` if torch has one, else the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.accelerator.set_device_index(index)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, index)


def own_rank() -> int:
    """Return the global rank of this process; 0 if torch.distributed is not initialized."""
    return dist.get_rank() if dist.is_initialized() else 0


@contextlib.contextmanager
def join_ranks(plan: ParallelPlan) -> Iterator[torch.device]:
    """Initialize the default process group with the device's backend, and destroy it at the end.

    Raises:
        RuntimeError: if torchrun started another number of ranks than the plan needs.
    """
    device, ranks = local_device(), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != plan.ranks:
        raise RuntimeError(f"plan '{plan}' needs {plan.ranks} ranks, torchrun started {ranks}")
    if ranks == 1:
        yield device
        return
    backend = dist.get_default_backend_for_device(device)
    # With device_id, NCCL connects here and not in the first collective.
    dist.init_process_group(backend, device_id=None if device.type == "cpu" else device)
    yield device
    # Without a barrier, the first gloo rank to exit resets its connections to slower ranks.
    dist.barrier()
    wait_for_gloo()
    dist.destroy_process_group()


def wait_for_gloo(at_most_s: float = 1.0) -> None:
    """Wait until gloo's threads sleep, on Linux.

    After a collective they release its tensors under Python's global lock. Requesting the lock
    while Python ends aborts the process (pytorch/pytorch issue 190489).
    """
    deadline_s, times_asleep = time.monotonic() + at_most_s, 0
    while times_asleep < 2 and time.monotonic() < deadline_s:  # once may be while it waits for us
        time.sleep(0.001)  # lets threads that wait for the lock have it
        asleep = all(state == "S" for state in _thread_states("pt_gloo_runloop"))
        times_asleep = times_asleep + 1 if asleep else 0


def _thread_states(name: str) -> Iterator[str]:
    """Yield the state, as in proc(5), of each thread of this process called ``name``."""
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            before, _, after = stat.read_text().rpartition(")")  # names may have parentheses
            if before.partition("(")[2] == name:
                yield after.split()[0]


def coordinates(plan: ParallelPlan, rank: int) -> dict[str, int]:
    """Return the coordinates of ``rank`` on the plan's axes ``dp``, ``pp``, ``cp`` and ``tp``."""
    places = (_rank_grid(plan) == rank).nonzero()[0].tolist()
    at: dict[str, int] = dict(zip(_sizes(plan), places, strict=True))
    replica = at["replicate"] * plan.shards + at["shard"]
    return {"dp": replica} | {axis: at[axis] for axis in ("pp", "cp", "tp")}


def uses_fsdp(plan: ParallelPlan) -> bool:
    """Return whether FSDP2 averages gradients: DDP supports neither shards nor what tp splits."""
    if plan.tensor != "1d":  # FSDP2 takes parameters on two axes at most
        return False
    return plan.dp > 1 and plan.sync != "blocking" and (plan.zero > 0 or plan.tp > 1)


def build_mesh(plan: ParallelPlan, device: torch.device, groups: Groups | None = None) -> Mesh:
    """Build the mesh of ``plan`` over the initialized ranks, nested in the plan's order.

    A collective over all ranks, unless ``groups`` has all of its process groups already.
    """
    if plan.ranks == 1:
        return Mesh(device, None)
    groups = groups or Groups()
    sizes, at, grid = _sizes(plan), coordinates(plan, own_rank()), _rank_grid(plan)
    needed = {"shard"} if uses_fsdp(plan) else set()  # also of size 1, to slice the mesh by
    kept = [axis for axis, size in sizes.items() if size > 1 or axis in needed]
    parts = {axis: grid.movedim(n, -1).flatten(0, -2).tolist() for n, axis in enumerate(sizes)}
    own = {axis: group for axis in kept if (group := groups.own(parts[axis])) is not None}
    axes = DeviceMesh.from_group(
        list(own.values()) if len(own) > 1 else own[kept[0]],
        device.type,
        grid.reshape([sizes[axis] for axis in kept]),
        mesh_dim_names=tuple(kept),
    )
    own = {axis: group for axis, group in own.items() if sizes[axis] > 1}
    if plan.delays_or_compresses and plan.pp > 1:
        own |= _link_groups(groups, parts["pp"], at["pp"])
    arrangement = None
    if plan.tensor_axes:
        arrangement = _arrange(plan, device, groups, parts["tp"])
        own |= {axis: arrangement.get_group(axis) for axis in plan.tensor_axes}
    return Mesh(
        device,
        axes,
        replica=at["dp"],
        pp_rank=at["pp"],
        cp_rank=at["cp"],
        tp_rank=at["tp"],
        groups=own,
        pipelines=parts["pp"],
        arrangement=arrangement,
        made=groups,
    )


def _arrange(
    plan: ParallelPlan, device: torch.device, groups: Groups, tp_groups: list[list[int]]
) -> DeviceMesh:
    """Return the mesh of the plan's ``tensor`` over the ranks of this rank's tp group.

    A collective: all ranks create all groups, in one order.
    """
    grid = torch.tensor(tp_groups).unflatten(1, tuple(plan.tensor_axes.values()))
    own = []
    for number in range(len(plan.tensor_axes)):
        group = groups.own(grid.movedim(1 + number, -1).flatten(0, -2).tolist())
        assert group is not None, "an axis has all ranks"
        own.append(group)
    (mine,) = (ranks for ranks in grid if own_rank() in ranks)
    return DeviceMesh.from_group(own, device.type, mine, mesh_dim_names=tuple(plan.tensor_axes))


def _link(sender: int, receiver: int) -> str:
    """Return the name of the link from one stage to another."""
    return f"pp {sender} to {receiver}"


def _link_groups(
    groups: Groups, pipelines: list[list[int]], own: int
) -> dict[str, dist.ProcessGroup]:
    """Return the link groups of stage ``own``; ``pipelines`` are the ranks of each pipeline.

    A collective: all ranks create all groups, in one order.
    """
    found = {}
    for backwards in (False, True):
        for first in (0, 1):  # every second pair of stages, so that pairs are disjoint
            firsts = range(first, len(pipelines[0]) - 1, 2)
            pairs = [ranks[n : n + 2] for ranks in pipelines for n in firsts]
            group = groups.own(pairs, "back" if backwards else "forth") if pairs else None
            if group is not None:
                stage = own if own in firsts else own - 1
                ends = (stage + 1, stage) if backwards else (stage, stage + 1)
                found[_link(*ends)] = group
    return found


class Groups:
    """Process groups, cached by partition of the ranks.

    The threads of a gloo group wake up a hundred times a second for as long as it exists. Groups
    are not destroyed: DTensor's caches refer to them.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], dist.ProcessGroup | None] = {}

    def own(self, parts: list[list[int]], purpose: str = "") -> dist.ProcessGroup | None:
        """Return this rank's group; ``parts`` are the ranks of each group. None if in no part.

        A collective over all ranks, unless parts and ``purpose`` are cached.
        """
        key = (str(sorted(parts)), purpose)
        if key not in self._made:
            own: object = dist.group.WORLD
            if len(parts) > 1 or purpose:
                own, _ = dist.new_subgroups_by_enumeration(parts)
            self._made[key] = own if isinstance(own, dist.ProcessGroup) else None
        return self._made[key]


def _sizes(plan: ParallelPlan) -> dict[str, int]:
    """Return the size of each mesh axis, in the order of torch's DeviceMesh."""
    return {axis: size(plan) for axes in _AXES.values() for axis, size in axes.items()}


def _rank_grid(plan: ParallelPlan) -> torch.Tensor:
    """Return the ranks arranged on the mesh: [pp, replicate, shard, cp, tp]."""
    sizes = _sizes(plan)
    inwards = [axis for part in plan.order.split("-") for axis in _AXES[part]]
    ranks = torch.arange(plan.ranks).view([sizes[axis] for axis in inwards])
    return ranks.permute([inwards.index(axis) for axis in sizes])
