from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.plan import ChainFacts, ParallelPlan
from suite.refusal import ExitCode, Refusal

_SIZES = st.integers(1, 999_999)
_MANY = st.integers(2, 999_999)


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    """Draw a plan, whether it fits anything or not."""
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    pp = draw(_SIZES)
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zbv"])) if pp > 1 else None
    dp, shard = draw(_SIZES), draw(st.none() | _SIZES)
    return ParallelPlan(
        dp=dp,
        sync=draw(st.sampled_from(["overlapped", "blocking"])),
        zero=zero,  # type: ignore[arg-type]  # drawn from what it may be
        shard=None if zero and shard == dp else shard,
        offload=draw(st.sampled_from(["none", "cpu"])),
        tp=draw(_SIZES),
        sp=draw(st.booleans()),
        pp=pp,
        schedule=schedule,  # type: ignore[arg-type]  # drawn from what it may be
        stages=draw(_MANY) if schedule == "interleaved" else 2 if schedule == "zbv" else 1,
        microbatches=draw(_SIZES),
        recompute=draw(st.integers(0, 999_999)),
        precision=draw(st.sampled_from(["fp32", "bf16", "fp16"])),
        compile=draw(st.booleans()),
        bn=draw(st.sampled_from(["micro", "deferred", "sync"])),
    )


FACTS = ChainFacts(units=6, global_batch_size=32, devices=4, ranks_per_device=1)
FREE = ChainFacts(
    units=64,
    global_batch_size=64,
    devices=64,
    ranks_per_device=1,
    device_kind="cuda",
    tensor_sizes=(8, 48),
    tokens=64,
)


@settings(deadline=None)
@given(plans())
def test_text_and_plan_are_inverse(plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(str(plan)) == plan


@settings(deadline=None)
@given(plans(), st.randoms(), st.sampled_from(["", " ", "  "]))
def test_order_and_spaces_do_not_matter(plan: ParallelPlan, random: object, space: str) -> None:
    parts = str(plan).split(",")
    random.shuffle(parts)  # type: ignore[attr-defined]  # hypothesis calls it object
    text = f"{space},{space}".join(part.replace("=", f"{space}={space}") for part in parts)

    assert ParallelPlan.parse(text) == plan


@settings(deadline=None)
@given(plans(), plans())
def test_names_for_files_are_safe_and_differ_as_plans_do(
    plan: ParallelPlan, other: ParallelPlan
) -> None:
    assert plan.slug.replace("-", "").isalnum()
    assert (plan.slug == other.slug) == (plan == other)


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
        ("dp=2,sync=blocking", "dp=2,sync=blocking", "dp2-blocking"),
        ("dp=2,sync=overlapped,zero=0,tp=1,sp=off,compile=off", "dp=2", "dp2"),
        ("dp=4,zero=3,shard=4", "dp=4,zero=3", "dp4-zero3"),
        ("shard=2,dp=4,zero=3", "dp=4,zero=3,shard=2", "dp4-zero3-shard2"),
        ("dp=2,zero=1,offload=cpu", "dp=2,zero=1,offload=cpu", "dp2-zero1-offloadcpu"),
        ("sp=on,tp=2", "tp=2,sp=on", "dp1-tp2-sp"),
        (
            "pp=2,schedule=interleaved",
            "pp=2,schedule=interleaved,stages=2,microbatches=2",
            "dp1-pp2-interleaved-stages2-m2",
        ),
        ("pp=2,schedule=zbv", "pp=2,schedule=zbv,microbatches=2", "dp1-pp2-zbv-m2"),
        ("recompute=1", "recompute=full", "dp1-rfull"),
        ("recompute=none", "dp=1", "dp1"),
        (
            "bn=deferred,compile=on,precision=bf16,recompute=3,microbatches=2",
            "microbatches=2,recompute=3,precision=bf16,compile=on,bn=deferred",
            "dp1-m2-r3-bf16-compile-bndeferred",
        ),
    ],
)
def test_many_spellings_have_one_canonical_text(text: str, canonical: str, slug: str) -> None:
    plan = ParallelPlan.parse(text)

    assert str(plan) == canonical
    assert plan.slug == slug
    assert ParallelPlan.parse(canonical) == plan


_PAIRS = "expected key=value pairs divided by commas, found"
_KEYS = (
    "expected keys out of dp, sync, zero, shard, offload, tp, sp, pp, schedule, stages, "
    "microbatches, recompute, precision, compile, bn, found"
)
_NUMBER = "to be a whole number from 1 to 999999, found"
_SCHEDULE = "expected schedule to be one of gpipe, 1f1b, interleaved, zbv, found"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", f"{_PAIRS} ''; write \"dp=2,pp=2\"."),
        ("dp", f"{_PAIRS} 'dp'; write"),
        ("dp=2,", f"{_PAIRS} ''; write"),
        ("dp=2;pp=2", f"expected dp {_NUMBER} '2;pp=2'; correct it."),
        ("cp=2", f"{_KEYS} 'cp'; drop it."),
        ("microbatch=2", f"{_KEYS} 'microbatch'; did you mean microbatches?"),
        ("expert=2", f"{_KEYS} 'expert'; drop it."),
        ("DP=2", f"{_KEYS} 'DP'; drop it."),
        ("dp=2,dp=2", "expected each key once, found dp twice; keep one dp."),
        ("dp=0", f"expected dp {_NUMBER} '0'; correct it."),
        ("pp=-1", f"expected pp {_NUMBER} '-1'; correct it."),
        ("pp=2.0", f"expected pp {_NUMBER} '2.0'; correct it."),
        ("dp=1e3", f"expected dp {_NUMBER} '1e3'; correct it."),
        ("dp=1000000", f"expected dp {_NUMBER} '1000000'; correct it."),
        ("dp=\u0662", f"expected dp {_NUMBER} '\u0662'; correct it."),
        ("microbatches=", f"expected microbatches {_NUMBER} ''; correct it."),
        ("pp=2,schedule=zb", f"{_SCHEDULE} zb; correct it."),
        ("pp=2,schedule=", f"{_SCHEDULE} ; correct it."),
        (
            "schedule=gpipe",
            "expected no schedule where pp=1, found schedule=gpipe; add pp=2 or drop schedule.",
        ),
        ("zero=4", "expected zero to be one of 0, 1, 2, 3, found 4; correct it."),
        ("sp=2", "expected sp to be one of off, on, found 2; correct it."),
        ("offload=disk", "expected offload to be one of none, cpu, found disk; correct it."),
        ("recompute=some", f"expected recompute to be none, full or {_NUMBER[6:]} 'some'; correct"),
        ("recompute=0", f"expected recompute to be none, full or {_NUMBER[6:]} '0'; correct it."),
        (
            "pp=2,stages=2",
            "expected stages only under schedule=interleaved, found stages=2 with schedule=1f1b;",
        ),
        (
            "pp=2,schedule=interleaved,stages=1",
            "expected at least 2 stages a rank under schedule=interleaved, found stages=1; use",
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


@settings(deadline=None)
@given(plans())
def test_what_does_not_fit_is_said_and_nothing_is_raised(plan: ParallelPlan) -> None:
    for facts in (FACTS, FREE):
        for finding in plan.check(facts):
            assert finding.sentence.startswith(f"plan '{plan}': expected ")


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
        "dp=4,zero=3,shard=2,microbatches=2",
        "dp=2,pp=2,zero=1",
        "pp=2,schedule=interleaved,stages=3",
        "pp=2,schedule=zbv",
        "dp=2,pp=2,schedule=zbv,sync=blocking",
        "dp=2,pp=2,schedule=zbv,zero=1,bn=deferred,precision=bf16",
        "dp=2,bn=sync,compile=on,recompute=6",
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
        ("pp=4,schedule=zbv", ["plan.units"]),
        ("pp=2,schedule=interleaved,stages=4", ["plan.units"]),
        ("tp=2", ["plan.tp"]),
        ("offload=cpu", ["plan.offload"]),
        ("dp=2,zero=3,offload=cpu", ["plan.offload"]),
        ("recompute=7", ["plan.recompute"]),
    ],
)
def test_each_misfit_is_a_finding(text: str, rules: list[str]) -> None:
    findings = ParallelPlan.parse(text).check(FACTS)

    assert [finding.rule for finding in findings] == rules
    assert all(finding.sentence.startswith("plan '") for finding in findings)
    assert all(finding.sentence.endswith(".") for finding in findings)


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        ("sync=blocking", "replicas", "replicas (dp > 1) for sync=blocking to work on"),
        ("zero=1", "replicas", "replicas (dp > 1) for zero=1 to work on"),
        ("dp=2,zero=1,sync=blocking", "sync", "sync=overlapped with zero"),
        ("dp=2,pp=2,zero=2", "zero", "it reduces gradients once a step, as zero=1 does"),
        ("dp=2,shard=2", "shard", "zero where shard is given"),
        ("dp=4,zero=3,shard=3", "shard", "shard to divide dp=4"),
        ("dp=4,zero=3,shard=1", "shard", "and to be more than 1"),
        ("dp=2,offload=cpu", "offload", "zero where offload is given"),
        ("sp=on", "sp", "tp > 1 for sp"),
        ("tp=3", "tp", "tp to divide the 8 heads or features that the model splits"),
        ("tp=16", "tp", "tp to divide the 8 heads or features that the model splits"),
        (
            "pp=4,schedule=interleaved,microbatches=6",
            "microbatches",
            "a multiple of pp=4 micro-batches under schedule=interleaved",
        ),
        ("dp=2,pp=2,schedule=zbv", "split_backward", "which DDP would do before all is there"),
        ("dp=2,pp=2,schedule=zbv,zero=3", "split_backward", "whose gradients are still to come"),
        ("pp=2,schedule=zbv,compile=on", "split_backward", "a compiled backward pass cannot"),
        ("pp=2,schedule=zbv,recompute=full", "split_backward", "would recompute"),
        ("dp=2,pp=2,schedule=zbv,zero=1,bn=sync", "split_backward", "its collectives cannot"),
        ("bn=sync", "bn", "replicas (dp > 1) for bn=sync to work on"),
        ("bn=deferred", "bn", "more than one micro-batch for bn=deferred to put together"),
    ],
)
def test_what_is_known_to_be_wrong_is_refused_with_its_reason(
    text: str, rule: str, says: str
) -> None:
    findings = ParallelPlan.parse(text).check(FREE)

    assert [finding.rule for finding in findings if says in finding.expected] == [f"plan.{rule}"]


@pytest.mark.parametrize(
    ("facts", "text", "says"),
    [
        ({"tokens": None}, "tp=2,sp=on", "units that work token by token for sp"),
        ({"tokens": 5}, "tp=4,sp=on", "a part of the 5 tokens of a sample for each rank under sp"),
        ({"tied": True}, "pp=2", "neither pp nor zero where units share a parameter"),
        ({"tied": True}, "dp=2,zero=1", "neither pp nor zero where units share a parameter"),
        ({"batch_norm": False}, "bn=deferred,microbatches=2", "BatchNorm in the model"),
    ],
)
def test_what_the_model_cannot_is_refused(facts: dict[str, object], text: str, says: str) -> None:
    findings = ParallelPlan.parse(text).check(
        dataclasses.replace(FREE, **facts)  # type: ignore[arg-type]  # the rows above are typed
    )

    assert len(findings) == 1
    assert says in findings[0].expected


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


def test_stages_lie_in_turns_or_in_a_v() -> None:
    interleaved = ParallelPlan.parse("pp=2,schedule=interleaved,stages=3")
    folded = ParallelPlan.parse("pp=3,schedule=zbv")

    assert [interleaved.stages_of(rank) for rank in range(2)] == [(0, 2, 4), (1, 3, 5)]
    assert [folded.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


@pytest.mark.parametrize(
    ("text", "span"),
    [("dp=2", 16), ("dp=2,microbatches=2", 8), ("dp=2,bn=sync,microbatches=2", 16)],
)
def test_batch_norm_spans_a_micro_batch_or_all_replicas(text: str, span: int) -> None:
    assert ParallelPlan.parse(text).batch_norm_span(32) == span
