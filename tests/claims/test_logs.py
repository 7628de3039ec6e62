"""Claims on logs: made-up results of this suite and of a round, and what changes a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.claims.claim import ExpressionCheck, NoCheck, ProjectCheck
from hybridperf.claims.logs import Archive, evidence_of_logs
from hybridperf.claims.verdict import judge_claim
from hybridperf.log.package import find_packages
from hybridperf.report.judgement import judged_entries
from hybridperf.score.compare import compare
from tests.claims.files import one_claim
from tests.packages import write_result
from tests.scaling_results import write_pair
from tests.score.made_up_round import judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.claims.verdict import CheckedClaim

TIMES_S = [148.0, 149.0, 149.0, 150.0, 149.0, 148.5, 149.5, 149.0, 148.0, 150.0]


def checked(root: Path, check: str, value: str) -> CheckedClaim:
    claim = one_claim(root, check, value)
    assert not isinstance(claim.check, NoCheck | ProjectCheck | ExpressionCheck)
    assert claim.stated is not None
    return judge_claim(claim, evidence_of_logs(claim.check, claim.stated, Archive([root])))


@pytest.fixture
def round_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a round of three results of BERT on eight accelerators."""
    judge_made_up(monkeypatch)
    root = tmp_path / "training_results_v2.1"
    for org, ratio in (("first", 1.0), ("second", 1.1), ("third", 1.4)):
        write_round(root, [log_lines(ratio * time_s) for time_s in TIMES_S], org=org)
    return tmp_path


def at(org: str, system: str = "eight") -> str:
    return f"training_results_v2.1/{org}/results/{system}/bert"


SCORE = f'kind = "score"\nresult = "{at("first")}"\nmetric = "official_minutes"'
WHERE = 'where = { round = "2.1", benchmark = "bert", accelerators = 8 }'


def test_a_score_is_confirmed_until_one_log_is_five_seconds_slower(round_of: Path) -> None:
    before = checked(round_of, SCORE, "149.0 s")
    folder = round_of / at("first")
    (folder / "result_4.txt").write_text("\n".join(log_lines(TIMES_S[4] + 5)))

    after = checked(round_of, SCORE, "149.0 s")

    assert before.verdict == "confirmed"
    (reading,) = before.evidence.readings
    assert reading.value == pytest.approx(149.0)
    assert after.verdict == "contradicted"


def test_a_score_has_the_interval_of_score_in_the_unit_of_the_claim(round_of: Path) -> None:
    in_s = checked(round_of, SCORE, "149 s").evidence.readings[0]
    in_min = checked(round_of, SCORE, "2.48 min").evidence.readings[0]

    assert in_s.low is not None
    assert in_min.low is not None
    assert in_s.low < in_s.value
    assert in_min.low == pytest.approx(in_s.low / 60)
    assert in_min.value == pytest.approx(in_s.value / 60)


def test_a_comparison_is_that_of_compare(round_of: Path) -> None:
    check = (
        f'kind = "compare"\nresult = "{at("first")}"\nbase = "{at("second")}"\nmetric = "saving"'
    )

    found = checked(round_of, check, "9 %")

    a, b = judged_entries([find_packages(round_of / at(org))[0] for org in ("second", "first")])
    decision = compare(a.official, b.official).decision
    (reading,) = found.evidence.readings
    assert decision.ratio is not None
    assert decision.interval is not None
    assert reading.value == pytest.approx(100 * (1 - decision.ratio))
    assert reading.low == pytest.approx(100 * (1 - decision.interval.high))
    assert (found.verdict, reading.distinguishable) == ("confirmed", True)
    assert "official scores" in found.evidence.notes[0]


def test_the_strongest_base_is_the_fastest_of_the_board(round_of: Path) -> None:
    check = f'kind = "compare"\nresult = "{at("third")}"\nbase = "{at("second")}"'

    (strongest,) = checked(round_of, check, "9 %").evidence.strongest

    assert strongest.conditions == {"base": "first eight"}
    assert strongest.value == pytest.approx(100 * (1 / 1.4 - 1))


def test_a_superlative_is_checked_against_all_that_match(round_of: Path) -> None:
    base = f'kind = "compare"\nresult = "{at("second")}"\nbase = "{at("third")}"\nbest = true'
    every = f'kind = "compare"\nresult = "{at("second")}"\n{WHERE}\nbest = true'

    assert checked(round_of, base, "27 %").verdict == "confirmed"
    assert checked(round_of, every, "27 %").verdict == "contradicted"


def test_a_place_is_among_the_results_of_the_filter(round_of: Path) -> None:
    write_round(
        round_of / "training_results_v2.1",
        [log_lines(1.0) for _ in TIMES_S],
        org="large",
        facts={"division": "closed", "number_of_nodes": "8", "accelerators_per_node": 8},
    )
    check = f'kind = "place"\nresult = "{at("first")}"\n{WHERE}'

    found = checked(round_of, check, "1")

    (reading,) = found.evidence.readings
    assert (found.verdict, reading.value, reading.low, reading.high) == ("confirmed", 1, 1, 1)
    assert checked(round_of, check.replace("first", "third"), "1").verdict == "contradicted"


def test_a_tied_first_place_is_not_distinguishable(round_of: Path) -> None:
    times_s = [time_s + shift for time_s, shift in zip(TIMES_S, (1, -1) * 5, strict=True)]
    write_round(
        round_of / "training_results_v2.1", [log_lines(each) for each in times_s], org="tie"
    )

    found = checked(round_of, f'kind = "place"\nresult = "{at("first")}"\n{WHERE}', "1")

    assert found.verdict == "not distinguishable"
    assert found.evidence.readings[0].high == 2


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (f'kind = "count"\nwhat = "organisations"\n{WHERE}', "3"),
        ('kind = "count"\nwhat = "results"\nwhere = { submitter = "first" }', "1"),
        ('kind = "count"\nwhat = "organisations"\nnames = ["a", "b", "a"]', "2"),
    ],
)
def test_numbers_are_counted(round_of: Path, check: str, value: str) -> None:
    assert checked(round_of, check, value).verdict == "confirmed"
    assert checked(round_of, check, "9").verdict == "contradicted"


def test_an_efficiency_is_that_of_scale_by_each_definition(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path)
    base, result = (each.folder.relative_to(tmp_path) for each in (one, two))
    check = (
        f'kind = "scale"\nresult = "{result}"\nbase = "{base}"\n'
        'metrics = ["time_to_train", "end_to_end_throughput"]'
    )

    found = checked(tmp_path, check, "75.0 %")

    assert [each.conditions["metric"] for each in found.evidence.readings] == [
        "time to train",
        "end-to-end throughput",
    ]
    assert found.words == "holds where metric is time to train"
    assert found.evidence.readings[0].command.startswith("hybridperf scale --from ")


def test_throughputs_and_samples_are_compared(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path)
    base, result = (each.folder.relative_to(tmp_path) for each in (one, two))
    check = f'kind = "compare"\nresult = "{result}"\nbase = "{base}"\n'

    steady = checked(tmp_path, f'{check}metric = "steady_throughput"', "1.5x")
    samples = checked(tmp_path, f'{check}metric = "samples"', "no worse")

    assert steady.evidence.readings[0].value == pytest.approx(1.5, rel=0.02)
    assert steady.verdict == "confirmed"
    assert (samples.verdict, samples.evidence.readings[0].value) == ("not distinguishable", 1.0)


@pytest.mark.parametrize(
    ("check", "value", "why"),
    [
        (SCORE.replace("first", "nobody"), "149 s", "No such folder"),
        ('kind = "count"\nwhat = "results"\nwhere = { round = "9.9" }', "1", "no result at hand"),
        (SCORE.replace("official_minutes", "rcp_limit"), "9", "has no rcp_limit"),
    ],
)
def test_what_is_not_at_hand_cannot_be_checked(
    round_of: Path, check: str, value: str, why: str
) -> None:
    found = checked(round_of, check, value)

    assert found.verdict == "cannot be checked"
    assert why.lower() in found.sentence.lower()


def test_results_of_two_tasks_cannot_be_compared(tmp_path: Path) -> None:
    one = write_result(tmp_path, system="one")
    two = write_result(tmp_path, system="two", task="vit/laptop")
    base, result = (each.folder.relative_to(tmp_path) for each in (one, two))

    found = checked(tmp_path, f'kind = "compare"\nresult = "{result}"\nbase = "{base}"', "5 %")

    assert found.verdict == "cannot be checked"
    assert "a result of 'resnet/laptop'" in found.sentence
