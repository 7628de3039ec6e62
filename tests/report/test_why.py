from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suite.report.entry import read_entries
from suite.report.why import split_time

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


def test_the_parts_multiply_to_the_whole(submissions: Submissions) -> None:
    submissions.add([10, 10, 10], system="a", epochs=8)
    submissions.add([30, 30, 30], system="b", epochs=12)
    fast, slow = (entry.score for entry in read_entries(submissions.root))

    split = split_time(slow, fast)

    assert split is not None
    assert split.time == pytest.approx(3)
    assert split.samples == pytest.approx(12 * 1195 // 32 / (8 * 1195 // 32))
    assert split.time == pytest.approx(split.samples * split.seconds_per_sample)


def test_there_is_no_split_without_a_mean(submissions: Submissions) -> None:
    submissions.add([10, 10, 10], system="a")
    submissions.add([10, 10], system="b")
    whole, part = (entry.score for entry in read_entries(submissions.root))

    assert split_time(part, whole) is None
    assert split_time(whole, part) is None
