"""Every log of ten rounds has the verdict of its round's official checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.rules.mlperf.check_round import check_round
from hybridperf.rules.verdict import Outcome
from tests.rules.mlperf.published_rounds import EDITIONS, official_verdicts, published_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: logs of the round that are not at hand: those of submitters that are kept back, and two results
#: that were too large (``half_a_left_out.csv``); of the others, the number of invalid ones
AT_HAND = {
    "1.0": (419, 15),
    "1.1": (740, 14),
    "2.0": (995, 11),
    "2.1": (1090, 9),
    "3.0": (930, 19),
    "3.1": (799, 6),
    "4.0": (898, 6),
    "4.1": (609, 4),
    "5.0": (828, 5),
    "5.1": (620, 1),
}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with published_rounds(tmp_path_factory) as folder:
        yield folder


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_verdict_of_a_round_is_the_official_one(rounds: Path, edition: str) -> None:
    folder = rounds / f"training_results_v{edition}"

    verdict = check_round(folder, f"mlperf-training-{edition}.0", "as-published")

    ours = {log.path: log.outcome for log in verdict.all_logs}
    official = {path: valid for path, valid in official_verdicts(edition).items() if path in ours}
    assert set(ours) == set(official)
    differing = {path: each for path, each in ours.items() if each.valid != official[path]}
    assert differing == {}
    invalid = sum(each is Outcome.INVALID for each in ours.values())
    assert (len(ours), invalid) == AT_HAND[edition]
