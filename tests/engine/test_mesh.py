from __future__ import annotations

import hashlib
import itertools
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import (
    Groups,
    build_mesh,
    coordinates,
    join_ranks,
    local_device,
    wait_for_gloo,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf_reference.engine.mesh import Mesh


def test_too_few_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    with (
        pytest.raises(RuntimeError, match=r"'dp=4' needs 4 ranks, torchrun started 2"),
        join_ranks(ParallelPlan(dp=4)),
    ):
        pass


def test_one_rank_has_no_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    plan = ParallelPlan()

    with join_ranks(plan) as device:
        mesh = build_mesh(plan, device)

    assert (mesh.replica, mesh.pp_rank, mesh.tp_rank) == (0, 0, 0)
    assert (mesh.group("shard"), mesh.pp_group, mesh.replica_groups()) == (None, None, [])
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(mesh.sum(values), values)
    assert [part.tolist() for part in mesh.gather(values)] == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("dp=2,pp=2,tp=2", [0, 1, 2, 3, 4, 5, 6, 7]),  # tp is the innermost, pp the outermost
        ("dp=2,pp=2,tp=2,order=dp-pp-tp", [0, 1, 4, 5, 2, 3, 6, 7]),
        ("dp=2,pp=2,tp=2,order=tp-pp-dp", [0, 4, 1, 5, 2, 6, 3, 7]),
        ("dp=4,zero=1,shard=2,tp=2,order=tp-dp-pp", [0, 4, 1, 5, 2, 6, 3, 7]),
        ("dp=2,cp=2,tp=2,order=tp-dp-pp", [0, 2, 4, 6, 1, 3, 5, 7]),
    ],
)
def test_ranks_are_numbered_over_the_axes_in_the_order_of_the_plan(
    text: str, ranks: list[int]
) -> None:
    plan = ParallelPlan.parse(text)
    places = itertools.product(*(range(n) for n in (plan.pp, plan.dp, plan.cp, plan.tp)))

    found = {tuple(coordinates(plan, rank).values()): rank for rank in range(plan.ranks)}

    assert [found[dp, pp, cp, tp] for pp, dp, cp, tp in places] == ranks


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_the_device_is_the_cpu() -> None:
    assert local_device() == torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what threads do")
def test_ranks_leave_once_threads_of_gloo_sleep() -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    def name_thread(name: str) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)

    def stand_by() -> None:
        name_thread("Thread-1 (run)")  # as Python 3.14 names them
        has_ended.wait()

    def let_go() -> None:
        name_thread("pt_gloo_runloop")
        has_begun.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", iterations=300_000)  # without the global lock
        has_ended.set()

    threads = [threading.Thread(target=each) for each in (stand_by, let_go)]
    for thread in threads:
        thread.start()
    has_begun.wait()
    wait_for_gloo(at_most_s=600)

    assert has_ended.is_set()
    for thread in threads:
        thread.join()


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Be rank 1 of four, which do not exist."""
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_plans_that_divide_ranks_alike_share_their_groups(four_ranks: None) -> None:
    groups, device = Groups(), torch.device("cpu")

    def of(text: str) -> Mesh:
        return build_mesh(ParallelPlan.parse(text), device, groups)

    assert of("dp=4").group("replicate") == of("tp=4").group("tp") == of("pp=4").pp_group
    two, other = of("dp=2,pp=2"), of("dp=2,tp=2")
    assert two.group("replicate") == other.group("tp")
    assert two.group("pp") == other.group("replicate")
    delayed = of("dp=2,pp=2,staleness=1,flush=off")
    assert delayed.pp_group == two.pp_group
    assert delayed.link_group(0, 1) == of("dp=2,pp=2,links=bf16").link_group(0, 1)


def test_only_fsdp_has_an_axis_of_one_rank(four_ranks: None) -> None:
    def axes(text: str) -> Mapping[str, int]:
        mesh = build_mesh(ParallelPlan.parse(text), torch.device("cpu")).axes
        assert mesh is not None
        return dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))

    assert axes("dp=4") == {"replicate": 4}
    assert axes("dp=4,zero=1") == {"shard": 4}
    assert axes("dp=2,pp=2") == {"pp": 2, "replicate": 2}
    assert axes("dp=2,tp=2") == {"replicate": 2, "shard": 1, "tp": 2}
    assert axes("dp=2,tp=2,sync=blocking") == {"replicate": 2, "tp": 2}
    assert axes("pp=2,tp=2") == {"pp": 2, "tp": 2}
