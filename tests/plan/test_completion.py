from __future__ import annotations

import pytest

from hybridperf.plan import complete_plan
from hybridperf.plan.fields import FIELDS


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("", [f"{key}=" for key in FIELDS]),
        ("sch", ["schedule="]),
        ("dp=2,sch", ["dp=2,schedule="]),
        ("dp=2,st", ["dp=2,stages=", "dp=2,staleness="]),
        ("sp=on,s", [f"sp=on,{k}=" for k in ("sync", "shard", "schedule", "stages", "staleness")]),
        ("pp=2,schedule=g", ["pp=2,schedule=gpipe"]),
        ("pp=2,cut", ["pp=2,cut=", "pp=2,cuts="]),
        ("pp=2,cut=p", ["pp=2,cut=parameters", "pp=2,cut=prefix_nearest"]),
        ("compile=", ["compile=off", "compile=on"]),
        ("dp=", []),
        ("unknown=", []),
    ],
)
def test_completions_of_a_partial_plan(text: str, completed: list[str]) -> None:
    assert complete_plan(text) == completed
