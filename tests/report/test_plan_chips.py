from __future__ import annotations

import pytest

from suite.report.plan_chips import plan_chips, plan_ranks


@pytest.mark.parametrize(
    ("plan", "chips", "ranks"),
    [
        ("dp=1", ["dp 1"], 1),
        (
            "dp=2,pp=2,schedule=1f1b,microbatches=4",
            ["dp 2", "pp 2", "1f1b", "4 micro-batches"],
            4,
        ),
        ("tp=4", ["tp 4"], None),
        ("nonsense", ["nonsense"], None),
        ("", [], None),
    ],
)
def test_a_plan_becomes_chips(plan: str, chips: list[str], ranks: int | None) -> None:
    assert [chip.text for chip in plan_chips(plan)] == chips
    assert plan_ranks(plan) == ranks
