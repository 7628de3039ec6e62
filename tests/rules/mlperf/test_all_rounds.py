"""Every log of ten rounds has the verdict of its round's official checker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from hybridperf.rules.check import check_path
from hybridperf.rules.rule import READING
from hybridperf.rules.verdict import Outcome
from tests.rules.mlperf.published_rounds import TIERS, official_verdicts, published_rounds

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
#: of the same logs, those with errors that only mode strict finds; each was held against the log:
#: v1.0: a result with runs submitted twice, one with nine runs that have the qualities of another,
#:   one with a run of another batch size;
#: cadence: Dell evaluates BERT with batches of 1,536 every 175,104 samples, where 150,000 are due,
#:   and Llama 3.1 8B every 24,576 in place of 12,288, Juniper LoRA every 768 in place of 384.
STRICTLY = {
    "1.0": {
        "clock": 15, "configuration": 1, "copies": 4, "missed": 1, "runs": 3, "stop": 1,
        "thoroughness": 25, "timed": 20, "twins": 13,
    },
    "1.1": {"configuration": 2, "thoroughness": 10, "timed": 1, "untimed": 2},
    "2.0": {},
    "2.1": {"cache": 1, "cadence": 20, "configuration": 1, "thoroughness": 5},
    "3.0": {"cadence": 40, "thoroughness": 25},
    "3.1": {"configuration": 1, "thoroughness": 15},
    "4.0": {"cadence": 10, "configuration": 1, "thoroughness": 5},
    "4.1": {},
    "5.0": {},
    "5.1": {"cadence": 10},
}  # fmt: skip


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with published_rounds(tmp_path_factory) as folder:
        yield folder


@pytest.mark.parametrize("edition", TIERS)
def test_every_verdict_of_a_round_is_the_official_one(rounds: Path, edition: str) -> None:
    folder = rounds / f"training_results_v{edition}"

    verdict = check_path(folder, f"mlperf-training-{edition}.0", "as-published")

    ours = {log.path: log.outcome for log in verdict.all_logs}
    official = {path: valid for path, valid in official_verdicts(edition).items() if path in ours}
    assert set(ours) == set(official)
    differing = {path: each for path, each in ours.items() if each.valid != official[path]}
    assert differing == {}
    invalid = sum(each is Outcome.INVALID for each in ours.values())
    assert (len(ours), invalid) == AT_HAND[edition]


@pytest.mark.parametrize("edition", TIERS)
def test_mode_strict_finds_these_errors_in_accepted_logs_and_no_others(
    rounds: Path, edition: str
) -> None:
    folder = rounds / f"training_results_v{edition}"

    verdict = check_path(folder, f"mlperf-training-{edition}.0", "strict")

    errors = {
        (each.rule, each.path)
        for each in verdict.findings
        if each.severity is Severity.ERROR and each.rule not in READING
    }
    found = Counter(rule.removeprefix("mlperf.") for rule, _ in errors if "mlperf." in rule)
    assert found == STRICTLY[edition]
