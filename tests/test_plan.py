from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.plan import ChainFacts, ParallelPlan, Schedule
from suite.refusal import ExitCode, Refusal

_SIZES = st.integers(1, 999_999)
_SCHEDULES: st.SearchStrategy[Schedule] = st.sampled_from(["gpipe", "1f1b"])
_PIPELINES = st.builds(
    ParallelPlan, dp=_SIZES, pp=st.integers(2, 999_999), schedule=_SCHEDULES, microbatches=_SIZES
)
_PLANS = _PIPELINES | st.builds(ParallelPlan, dp=_SIZES, microbatches=_SIZES)
FACTS = ChainFacts(units=6, global_batch_size=32, devices=4, ranks_per_device=1)


@settings(deadline=None)
@given(_PLANS)
def test_text_and_plan_are_inverse(plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(str(plan)) == plan


@settings(deadline=None)
@given(_PLANS, st.randoms(), st.sampled_from(["", " ", "  "]))
def test_order_and_spaces_do_not_matter(plan: ParallelPlan, random: object, space: str) -> None:
    parts = str(plan).split(",")
    random.shuffle(parts)  # type: ignore[attr-defined]  # hypothesis calls it object
    text = f"{space},{space}".join(part.replace("=", f"{space}={space}") for part in parts)

    assert ParallelPlan.parse(text) == plan


@settings(deadline=None)
@given(_PLANS)
def test_names_for_files_are_safe_and_differ_as_plans_do(plan: ParallelPlan) -> None:
    other = dataclasses.replace(plan, microbatches=plan.microbatches + 1)

    assert plan.slug.replace("-", "").isalnum()
    assert plan.slug != other.slug


@pytest.mark.parametrize(
    ("text", "canonical", "slug"),
    [
        ("dp=1", "dp=1", "dp1"),
        ("pp=1", "dp=1", "dp1"),
        ("microbatches=1", "dp=1", "dp1"),
        ("dp=1,pp=1,microbatches=1", "dp=1", "dp1"),
        ("dp=2", "dp=2", "dp2"),
        ("dp=002", "dp=2", "dp2"),
        (" dp = 2 , pp = 1 ", "dp=2", "dp2"),
        ("microbatches=4", "microbatches=4", "dp1-m4"),
        ("microbatches=4,dp=2", "dp=2,microbatches=4", "dp2-m4"),
        ("pp=2", "pp=2,schedule=1f1b,microbatches=2", "dp1-pp2-1f1b-m2"),
        ("pp=2,microbatches=1", "pp=2,schedule=1f1b,microbatches=1", "dp1-pp2-1f1b-m1"),
        ("schedule=gpipe,pp=4", "pp=4,schedule=gpipe,microbatches=4", "dp1-pp4-gpipe-m4"),
        (
            "microbatches=8,schedule=1f1b,pp=2,dp=2",
            "dp=2,pp=2,schedule=1f1b,microbatches=8",
            "dp2-pp2-1f1b-m8",
        ),
    ],
)
def test_many_spellings_have_one_canonical_text(text: str, canonical: str, slug: str) -> None:
    plan = ParallelPlan.parse(text)

    assert str(plan) == canonical
    assert plan.slug == slug
    assert ParallelPlan.parse(canonical) == plan


_PAIRS = "expected key=value pairs divided by commas, found"
_KEYS = "expected keys out of dp, pp, schedule, microbatches, found"
_NUMBER = "to be a whole number from 1 to 999999, found"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", f"{_PAIRS} ''; write \"dp=2,pp=2\"."),
        ("dp", f"{_PAIRS} 'dp'; write"),
        ("dp=2,", f"{_PAIRS} ''; write"),
        ("dp=2;pp=2", f"expected dp {_NUMBER} '2;pp=2'; correct it."),
        ("tp=2", f"{_KEYS} 'tp'; drop it."),
        ("microbatch=2", f"{_KEYS} 'microbatch'; did you mean microbatches?"),
        ("zero=2", f"{_KEYS} 'zero'; drop it."),
        ("DP=2", f"{_KEYS} 'DP'; drop it."),
        ("dp=2,dp=2", "expected each key once, found dp twice; keep one dp."),
        ("dp=0", f"expected dp {_NUMBER} '0'; correct it."),
        ("pp=-1", f"expected pp {_NUMBER} '-1'; correct it."),
        ("pp=2.0", f"expected pp {_NUMBER} '2.0'; correct it."),
        ("dp=1e3", f"expected dp {_NUMBER} '1e3'; correct it."),
        ("dp=1000000", f"expected dp {_NUMBER} '1000000'; correct it."),
        ("dp=\u0662", f"expected dp {_NUMBER} '\u0662'; correct it."),
        ("microbatches=", f"expected microbatches {_NUMBER} ''; correct it."),
        ("pp=2,schedule=zb", "expected schedule to be one of gpipe, 1f1b, found zb; correct it."),
        ("pp=2,schedule=", "expected schedule to be one of gpipe, 1f1b, found ; correct it."),
        (
            "schedule=gpipe",
            "expected no schedule where pp=1, found schedule=gpipe; add pp=2 or drop schedule.",
        ),
    ],
)
def test_a_wrong_text_is_refused_with_one_sentence(text: str, says: str) -> None:
    with pytest.raises(Refusal) as refusal:
        ParallelPlan.parse(text)

    assert refusal.value.exit_code is ExitCode.USAGE
    assert str(refusal.value).startswith(f"plan {text!r}: {says}")
    assert refusal.value.finding is not None
    assert refusal.value.finding.rule == "plan.text"


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_plan_or_is_refused(text: str) -> None:
    outcome: ParallelPlan | Refusal
    try:
        outcome = ParallelPlan.parse(text)
    except Refusal as refusal:
        outcome = refusal

    if isinstance(outcome, Refusal):
        assert outcome.exit_code is ExitCode.USAGE
        assert len(str(outcome).splitlines()) == 1
    else:
        assert ParallelPlan.parse(str(outcome)) == outcome


@pytest.mark.parametrize(
    "text",
    [
        "dp=1",
        "dp=4",
        "pp=4",
        "dp=2,pp=2",
        "microbatches=32",
        "dp=2,pp=2,microbatches=16",
        "pp=4,schedule=gpipe,microbatches=2",
    ],
)
def test_a_plan_that_fits_has_no_findings(text: str) -> None:
    assert ParallelPlan.parse(text).check(FACTS) == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("dp=8", ["plan.ranks"]),
        ("dp=2,pp=4,microbatches=4", ["plan.ranks"]),
        ("dp=3", ["plan.divides"]),
        ("microbatches=64", ["plan.divides"]),
        ("dp=2,pp=2,microbatches=32", ["plan.divides"]),
        ("pp=4,microbatches=2", ["plan.microbatches"]),
        ("pp=8", ["plan.ranks", "plan.units"]),
        (
            "dp=5,pp=7,microbatches=3",
            ["plan.ranks", "plan.units", "plan.divides", "plan.microbatches"],
        ),
    ],
)
def test_each_misfit_is_a_finding(text: str, rules: list[str]) -> None:
    findings = ParallelPlan.parse(text).check(FACTS)

    assert [finding.rule for finding in findings] == rules
    assert all(finding.sentence.startswith("plan '") for finding in findings)
    assert all(finding.sentence.endswith(".") for finding in findings)


def test_a_misfit_names_the_numbers_and_the_remedy() -> None:
    (finding,) = ParallelPlan.parse("dp=3").check(FACTS)

    assert finding.sentence == (
        "plan 'dp=3': expected dp x microbatches to divide the batch of 32 samples, "
        "found 3 x 1 = 3; choose dp and microbatches from its divisors."
    )


def test_cores_may_be_shared_where_the_facts_say_so() -> None:
    shared = dataclasses.replace(FACTS, ranks_per_device=4)

    assert ParallelPlan.parse("dp=16").check(shared) == []
    assert [each.rule for each in ParallelPlan.parse("dp=32").check(shared)] == ["plan.ranks"]


def test_units_bound_the_stages_where_there_are_devices_enough() -> None:
    many = dataclasses.replace(FACTS, devices=64)

    assert ParallelPlan.parse("pp=6,microbatches=8").check(many) == []
    assert [each.rule for each in ParallelPlan.parse("pp=7,microbatches=8").check(many)] == [
        "plan.units"
    ]
