"""Every plan ends where the operations of a group are executed in order, as NCCL does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.mesh import Groups, build_mesh
from tests.engine import test_law, test_transparency
from tests.engine.families import FAMILIES
from tests.engine.nccl_order_worlds import record_all
from tests.engine.ranks import run_ranks
from tests.engine.recorded_groups import Event, find_hang, read_trace
from tests.tiers import in_tiers, plan_facts, selected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.tiers import Fact


# A stage between two others, which the tables of delayed plans have under four ranks only.
MORE = (
    "vgg:pp=3,microbatches=4,staleness=1",
    "vit:pp=3,microbatches=4,links=bf16,staleness=1,flush=off",
    # Two of the stages have copies of a parameter.
    "bert_tied:pp=3,microbatches=8",
    "bert_tied:pp=3,microbatches=4,links=bf16",
)


def items() -> dict[int, list[str]]:
    """Return each plan of the tables once, by ranks, as ``family:plan`` of the first that has it.

    But those that compile, which compute no other operations: compiling takes most of the time.
    """
    transparency = [item for _, _, item in test_transparency.EVERY]
    law = [
        f"{case.family}:{plan}"
        for ranks in test_law.DELAYED
        for case in test_law.cases(ranks)
        for plan in (case.plan, case.resume_plan)
        if plan
    ]
    found: dict[ParallelPlan, str] = {}
    for item in (*transparency, *law, *MORE):
        name, _, text = item.partition(":")
        plan = ParallelPlan.parse(text)
        if name in FAMILIES and plan.ranks > 1 and not plan.compile:
            found.setdefault(plan, item)
    by_ranks: dict[int, list[str]] = {}
    for plan, item in found.items():
        by_ranks.setdefault(plan.ranks, []).append(item)
    return by_ranks


ITEMS = items()


def facts(case: tuple[int, str]) -> set[Fact]:
    return plan_facts(ParallelPlan.parse(case[1].partition(":")[2]))


CASES = in_tiers([(ranks, item) for ranks in ITEMS for item in ITEMS[ranks]], facts)


class Worlds:
    """Worlds of ranks, each started when first asked for, which run the selected items."""

    def __init__(self, folder: Path, selected: Sequence[dict[str, Any]]) -> None:
        self._folder = folder
        own = {each.get("item") for each in selected}
        self._items = {ranks: [item for item in ITEMS[ranks] if item in own] for ranks in ITEMS}

    def traces(self, ranks: int, item: str) -> list[list[Event]]:
        """Return what each rank issued under an item."""
        folder = self._folder / str(ranks)
        if not folder.exists():
            folder.mkdir()
            run_ranks(ranks, record_all, folder, self._items[ranks], output=folder / "printed.txt")
        number = self._items[ranks].index(item)
        return [read_trace(folder / f"item_{number}_rank_{rank}.json") for rank in range(ranks)]


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"), selected(request))


@pytest.mark.parametrize(("ranks", "item"), CASES)
def test_a_plan_ends_in_the_order_of_nccl(worlds: Worlds, ranks: int, item: str) -> None:
    traces = worlds.traces(ranks, item)

    assert all(len(events) > 4 for events in traces), "nothing was recorded"
    assert find_hang(traces) is None


def operations(*events: tuple[int, str, str, int]) -> list[Event]:
    """Return what a rank of two does, from the number, kind, group and peer of each."""
    return [Event(number, kind, group, (0, 1), peer) for number, kind, group, peer in events]


def test_a_receive_posted_ahead_hangs_what_shares_its_group() -> None:
    def first(group: str) -> list[Event]:
        norm = (1, "allreduce", group, -1), (1, "wait", "", -1)
        return operations(*norm, (2, "send", "link", 1))

    def second(group: str) -> list[Event]:
        ahead, norm = (1, "recv", "link", 0), (2, "allreduce", group, -1)
        return operations(ahead, norm, (2, "wait", "", -1), (1, "wait", "", -1))

    assert find_hang([first("pipeline"), second("pipeline")]) is None
    hang = find_hang([first("link"), second("link")])
    assert hang == (
        "rank 0 executes allreduce before 0 others; rank 1 executes recv 0 before 1 others"
    )


@pytest.mark.parametrize("batched", [False, True])
def test_messages_both_ways_hang_unless_they_are_a_batch(batched: bool) -> None:
    second = 1 if batched else 2
    ranks = [
        operations((1, "send", "", other), (second, "recv", "", other), (second, "wait", "", -1))
        for other in (1, 0)
    ]

    assert (find_hang(ranks) is None) == batched


def test_collectives_in_different_orders_hang() -> None:
    one = (1, "allreduce", "", -1), (1, "wait", "", -1)
    other = (2, "broadcast", "", -1), (2, "wait", "", -1)

    assert find_hang([operations(*one, *other), operations(*one, *other)]) is None
    assert find_hang([operations(*one, *other), operations(*other, *one)]) is not None


@pytest.mark.parametrize("ranks", ITEMS)
def test_all_ranks_make_all_groups_in_one_order(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    made: dict[int, list[list[int]]] = {}
    new_group = distributed_c10d.new_group

    def remember(ranks: list[int], **options: Any) -> Any:
        made[dist.get_rank()].append(list(ranks))
        return new_group(ranks, **options)

    monkeypatch.setattr(distributed_c10d, "new_group", remember)
    for rank in range(ranks):
        made[rank] = []
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        groups = Groups()
        for item in ITEMS[ranks]:
            build_mesh(ParallelPlan.parse(item.partition(":")[2]), torch.device("cpu"), groups)
        dist.destroy_process_group()

    assert made[0], "nothing was remembered"
    assert all(made[rank] == made[0] for rank in made)
