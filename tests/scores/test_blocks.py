from __future__ import annotations

import pytest

from suite.scores.blocks import blocks


@pytest.mark.parametrize(("samples", "runs"), [(10_000, 10), (10_000, 10_000), (3, 2**21), (1, 1)])
def test_all_samples_are_drawn_few_numbers_at_a_time(samples: int, runs: int) -> None:
    rows = list(blocks(samples, runs))

    assert sum(rows) == samples
    assert max(rows) * runs <= max(2**20, runs)


def test_an_ordinary_result_is_one_block() -> None:
    assert list(blocks(10_000, 100)) == [10_000]
