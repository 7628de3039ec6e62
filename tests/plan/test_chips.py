from __future__ import annotations

import pytest

from hybridperf.plan import plan_chips
from hybridperf.plan.fields import FIELDS
from hybridperf.score.scaling import plan_ranks


@pytest.mark.parametrize(
    ("plan", "chips", "ranks"),
    [
        ("dp=1", ["dp 1"], 1),
        (
            "dp=2,pp=2,schedule=1f1b,microbatches=4",
            ["dp 2", "pp 2", "1f1b", "4 micro-batches"],
            4,
        ),
        ("tp=4", ["tp 4"], 4),
        (
            "dp=2,zero=3,tp=2,sp=on,pp=2,schedule=interleaved,stages=3,microbatches=2",
            [
                "dp 2",
                "zero 3",
                "tp 2",
                "sp",
                "pp 2",
                "interleaved",
                "3 stages a rank",
                "2 micro-batches",
            ],
            8,
        ),
        (
            "recompute=full,precision=bf16,compile=on,bn=sync",
            ["recompute full", "bf16", "compile", "bn sync"],
            1,
        ),
        ("pp=2,cut=ampa", ["pp 2", "cut by ampa"], 2),
        ("pp=3,cuts=3-7", ["pp 3", "cuts 3-7"], 3),
        ("xp=4", ["xp 4"], None),
        ("nonsense", ["nonsense"], None),
        ("", [], None),
    ],
)
def test_a_plan_has_a_chip_for_each_stated_field(
    plan: str, chips: list[str], ranks: int | None
) -> None:
    assert [chip.text for chip in plan_chips(plan)] == chips
    assert plan_ranks(plan) == ranks


@pytest.mark.parametrize(
    ("plan", "told"), [("links=int8", True), ("links=none", False), ("zero=3", False)]
)
def test_a_chip_says_what_makes_a_plan_compute_something_else(plan: str, told: bool) -> None:
    (chip,) = plan_chips(plan)

    assert (
        chip.meaning.endswith("; not equivalent to single-process training, so open division only")
        is told
    )


@pytest.mark.parametrize("key", FIELDS)
def test_every_key_of_a_plan_is_explained(key: str) -> None:
    (chip,) = plan_chips(f"{key}=2")

    assert chip.meaning != key
