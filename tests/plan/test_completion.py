from __future__ import annotations

import pytest

from hybridperf.plan import complete_plan
from hybridperf.plan.fields import FIELDS


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("", [f"{key}=" for key in FIELDS]),
        ("sch", ["schedule="]),
        ("dp=2,s", [f"dp=2,{key}=" for key in ("sync", "shard", "sp", "schedule", "stages")]),
        ("sp=on,s", [f"sp=on,{key}=" for key in ("sync", "shard", "schedule", "stages")]),
        ("pp=2,schedule=g", ["pp=2,schedule=gpipe"]),
        ("compile=", ["compile=off", "compile=on"]),
        ("dp=", []),
        ("unknown=", []),
    ],
)
def test_completions_of_a_partial_plan(text: str, completed: list[str]) -> None:
    assert complete_plan(text) == completed
