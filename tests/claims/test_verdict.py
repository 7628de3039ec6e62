"""The table of verdicts, from made-up readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.claims.claim import (
    Claim,
    ClaimSource,
    CompareCheck,
    NoCheck,
    ProjectCheck,
    ScaleCheck,
)
from hybridperf.claims.verdict import ClaimReading, ClaimVerdict, Evidence, judge_claim

if TYPE_CHECKING:
    from hybridperf.claims.claim import Check
    from hybridperf.claims.verdict import CheckedClaim

COMPARE = CompareCheck(("r",), ("b",))
BEST = CompareCheck(("r",), ("b",), best=True)
SCALE = ScaleCheck("r", "b", ("time_to_train",))
GRID = ProjectCheck(("t",), ("p",), ("b",), ("s",), (1,), ("fp32",))


def judged(
    value: str, *readings: ClaimReading, check: Check = COMPARE, lacks: str = ""
) -> CheckedClaim:
    claim = Claim("A1", "It is so", ClaimSource("A paper"), "", value, check)
    return judge_claim(claim, Evidence(readings, lacks=lacks))


def over(base: str, value: float, low: float, high: float, **facts: str) -> ClaimReading:
    """Return a comparison in per cent, in which a gain is better."""
    decided = not low <= 0 <= high
    return ClaimReading(value, {"base": base, **facts}, low, high, decided, advantage=value / 100)


@pytest.mark.parametrize(
    ("stated", "value", "verdict"),
    [
        ("149 s", 148.55, "confirmed"),
        ("149 s", 149.5, "confirmed"),
        ("149 s", 149.51, "contradicted"),
        ("5-11 %", 11.1, "confirmed"),
        ("5-11 %", 12.0, "contradicted"),
        ("over 100 years", 62.0, "contradicted"),
        ("about 2x", 1.7, "confirmed"),
        ("up to 79.2 %", 79.21, "confirmed"),
        ("up to 79.2 %", 60.0, "contradicted"),
    ],
)
def test_one_reading_is_confirmed_if_it_rounds_to_what_is_stated(
    stated: str, value: float, verdict: str
) -> None:
    assert judged(stated, ClaimReading(value), check=SCALE).verdict == verdict


def test_without_readings_nothing_can_be_checked_and_the_sentence_says_why() -> None:
    checked = judged("94 %", lacks="no folder v2.1")

    assert checked.verdict is ClaimVerdict.CANNOT_BE_CHECKED
    assert checked.sentence == "No folder v2.1."
    assert judged("", check=NoCheck("logs")).verdict is ClaimVerdict.CANNOT_BE_CHECKED


def test_a_difference_that_the_runs_do_not_decide_is_not_distinguishable() -> None:
    checked = judged("1 %", over("NVIDIA", 1.03, -3.5, 5.5))

    assert checked.verdict is ClaimVerdict.NOT_DISTINGUISHABLE
    assert "1.03 % (-3.50 to 5.50 %); the runs do not decide" in checked.sentence


def test_another_value_is_contradicted_and_the_sentence_tells_of_an_interval_around_it() -> None:
    wide, narrow = (
        judged("20 %", over("a", 17.0, low, high)) for low, high in ((12.0, 22.0), (15.0, 19.0))
    )

    assert (wide.verdict, narrow.verdict) == ("contradicted", "contradicted")
    assert "other runs may round to it" in wide.sentence
    assert "other runs" not in narrow.sentence


def test_the_part_is_what_the_readings_have_in_common_that_the_others_have_not() -> None:
    checked = judged(
        "1-20 %",
        over("NVIDIA", 1.03, -3.5, 5.5, accelerator="80 GB"),
        over("Azure", 8.0, 5.0, 11.0, accelerator="80 GB"),
        over("HPE", 19.7, 15.0, 24.0, accelerator="80 GB"),
        over("Dell", 25.8, 22.0, 29.0, accelerator="40 GB"),
    )

    assert checked.words == "holds where accelerator is 80 GB"
    assert "not distinguishable: NVIDIA: 1.03 %" in checked.sentence
    assert "not for Dell: 25.80 %" in checked.sentence


def test_a_part_of_two_conditions_names_both() -> None:
    readings = [
        ClaimReading(
            5.0 if (base, link) == ("blocking", "pcie") else 0.5, {"base": base, "link": link}
        )
        for base in ("blocking", "overlapped")
        for link in ("pcie", "nvlink")
    ]

    checked = judged("5 %", *readings, check=SCALE)

    assert checked.words == "holds where base is blocking and link is pcie"


def test_the_definition_of_a_metric_is_named() -> None:
    checked = judged(
        "94 %",
        ClaimReading(83.8, {"metric": "time to train"}, 77.5),
        ClaimReading(94.0, {"metric": "end-to-end throughput"}, 92.7, 95.4),
        ClaimReading(95.6, {"metric": "steady throughput"}, 94.4, 96.9),
        check=SCALE,
    )

    assert checked.words == "holds where metric is end-to-end throughput"


def test_a_superlative_is_contradicted_by_any_better_base_decided_or_not() -> None:
    ahead, behind = over("NVIDIA", 11.0, 5.0, 17.0), over("Inspur", -4.4, -12.0, 4.0)

    assert judged("5-11 %", ahead, behind, check=BEST).verdict == "contradicted"
    assert judged("5-11 %", ahead, check=BEST).verdict == "confirmed"
    assert "do not decide the difference" in judged("5-11 %", ahead, behind, check=BEST).sentence


def test_a_superlative_needs_every_lead_decided() -> None:
    ahead, close = over("a", 8.0, 5.0, 11.0), over("b", 5.0, -1.0, 11.0)

    assert judged("5-11 %", ahead, close, check=BEST).verdict == "not distinguishable"


def test_no_worse_is_contradicted_by_one_significant_loss_alone() -> None:
    loss = ClaimReading(1.33, {"task": "vgg"}, 1.1, 1.6, True, advantage=-0.25)
    tie = ClaimReading(1.15, {"task": "resnet"}, 0.98, 1.3, False, advantage=-0.13)
    gain = ClaimReading(0.9, {"task": "vit"}, 0.85, 0.95, True, advantage=0.1)

    assert judged("no worse", loss, tie, gain).verdict == "contradicted"
    assert judged("no worse", tie, gain).verdict == "not distinguishable"
    assert judged("no worse", gain).verdict == "confirmed"


def grid(*values: tuple[float, str, str]) -> list[ClaimReading]:
    return [
        ClaimReading(value, {"base": base, "batch": batch}, value * 0.95, value * 1.05)
        for value, base, batch in values
    ]


def test_a_grid_has_a_value_where_its_range_has_it_and_identifies_no_point() -> None:
    points = grid((20.0, "blocking", "32"), (60.0, "blocking", "128"), (1.0, "overlapped", "32"))

    checked = judged("42.2 %", *points, check=GRID)

    assert checked.words == "holds where base is blocking"
    assert checked.sentence == (
        "Projected 20.00 to 60.00 % at 2 points, 1.00 % at the other 1; consistent with 42.2 %, "
        "not identified; nearest 60.00 % with batch 128."
    )
    assert judged("90 %", *points, check=GRID).verdict == "contradicted"


def test_a_grid_that_has_the_value_everywhere_is_consistent_not_confirmed() -> None:
    checked = judged("42.2 %", *grid((40.0, "a", "1"), (44.0, "a", "1")), check=GRID)

    assert checked.verdict is ClaimVerdict.HOLDS_WHERE
    assert "consistent, not identified" in checked.words


def test_one_point_changed_changes_the_verdict() -> None:
    points = grid((20.0, "blocking", "32"), (60.0, "blocking", "128"))
    lower = grid((20.0, "blocking", "32"), (38.0, "blocking", "128"))
    near = grid((20.0, "blocking", "32"), (41.0, "blocking", "128"))

    assert judged("42.2 %", *points, check=GRID).verdict == "holds where"
    assert judged("42.2 %", *lower, check=GRID).verdict == "contradicted"
    assert "by nine of ten errors of projections" in judged("42.2 %", *near, check=GRID).sentence
