"""What a step of two ranks gains by ``balance=tokens`` on pieces of WikiText-2, in turn.

Both sides are our trainer on the same batches. Ranks wait for the slowest: its processor time
counts, which other processes of the machine disturb less than the time of the step.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tests.performance.balance_worlds import DATA
from tests.performance.launch import run_ranks
from tests.performance.pairing import rounded_interval
from tests.texts import wikitext_pieces

if TYPE_CHECKING:
    from pathlib import Path

BATCH = "80"


def test_balance(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DATA).write_bytes(pickle.dumps(wikitext_pieces(tmp_path, monkeypatch)))
    found = list[dict[str, Any]]()

    def whole() -> None:
        found.extend(run_ranks("tests.performance.balance_worlds", tmp_path, 2, BATCH))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    assert found[0]["ours"]["loss"] == pytest.approx(found[0]["theirs"]["loss"], rel=1e-5)
    benchmark.extra_info |= {
        "time of a step over that without balance, median and interval": _ratios(found, "wall_s"),
        "the same by processor time of the slower rank": _ratios(found, "processor_s"),
    }


def _ratios(found: list[dict[str, Any]], kind: str) -> list[float]:
    balanced, plain = (
        [max(ranks) for ranks in zip(*(rank[side][kind] for rank in found), strict=True)]
        for side in ("ours", "theirs")
    )
    return rounded_interval([own / other for own, other in zip(balanced, plain, strict=True)])
