from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from tests.plan.drawn import plans


@settings(deadline=None)
@given(plans())
def test_parsing_inverts_the_canonical_text(plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(str(plan)) == plan


@settings(deadline=None)
@given(plans(), st.randoms(), st.sampled_from(["", " ", "  "]))
def test_the_order_of_keys_and_spaces_are_ignored(
    plan: ParallelPlan, random: object, space: str
) -> None:
    parts = str(plan).split(",")
    random.shuffle(parts)  # type: ignore[attr-defined]  # hypothesis calls it object
    text = f"{space},{space}".join(part.replace("=", f"{space}={space}") for part in parts)

    assert ParallelPlan.parse(text) == plan


@settings(deadline=None)
@given(plans(), plans())
def test_slugs_are_valid_file_names_and_unique(plan: ParallelPlan, other: ParallelPlan) -> None:
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
        ("dp=2,staleness=1", "dp=2,staleness=1", "dp2-staleness1"),
        (
            "gropipe(groups=2,stages=4)",
            "dp=2,pp=4,schedule=1f1b,microbatches=4,staleness=1",
            "dp2-pp4-1f1b-m4-staleness1",
        ),
        (
            " gropipe ( stages = 2 , groups = 3 ) , recompute = full",
            "dp=3,pp=2,schedule=1f1b,microbatches=2,staleness=1,recompute=full",
            "dp3-pp2-1f1b-m2-staleness1-rfull",
        ),
        ("dp=16,baidu(node=8)", "dp=16,zero=1,shard=8", "dp16-zero1-shard8"),
        (
            "microbatches=4,pipedream_2bw(stages=2)",
            "pp=2,schedule=1f1b,microbatches=4,staleness=1,flush=off",
            "dp1-pp2-1f1b-m4-staleness1-flushoff",
        ),
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
        ("precision=tf32", "precision=tf32", "dp1-tf32"),
        ("gradients=bf16,dp=2", "dp=2,gradients=bf16", "dp2-gradientsbf16"),
        (
            "links=int8,pp=2",
            "pp=2,schedule=1f1b,microbatches=2,links=int8",
            "dp1-pp2-1f1b-m2-linksint8",
        ),
        ("cut=minimax,pp=2,microbatches=2", "pp=2,schedule=1f1b,microbatches=2", "dp1-pp2-1f1b-m2"),
        (
            "cut=prefix_nearest,pp=2",
            "pp=2,schedule=1f1b,cut=prefix_nearest,microbatches=2",
            "dp1-pp2-1f1b-cut-prefix-nearest-m2",
        ),
        (
            "cuts= 3 - 07 -12,pp=4",
            "pp=4,schedule=1f1b,cuts=3-7-12,microbatches=4",
            "dp1-pp4-1f1b-cuts-3-7-12-m4",
        ),
        ("order=dp-pp-tp,dp=2,tp=2", "dp=2,tp=2,order=dp-pp-tp", "dp2-tp2-order-dp-pp-tp"),
        ("order=pp-dp-tp", "dp=1", "dp1"),
        ("recompute=none", "dp=1", "dp1"),
        (
            "bn=deferred,compile=on,precision=bf16,recompute=3,microbatches=2",
            "microbatches=2,recompute=3,precision=bf16,compile=on,bn=deferred",
            "dp1-m2-r3-bf16-compile-bndeferred",
        ),
    ],
)
def test_equal_plans_have_one_canonical_text(text: str, canonical: str, slug: str) -> None:
    plan = ParallelPlan.parse(text)

    assert str(plan) == canonical
    assert plan.slug == slug
    assert ParallelPlan.parse(canonical) == plan


_PAIRS = "expected key=value pairs separated by commas, found"
_KEYS = f"expected one of the keys {', '.join(FIELDS)}, found"
_NUMBER = "to be a whole number from 1 to 999999, found"
_SERIES = "expected cuts to be increasing whole numbers from 1 to 999999, separated by '-', found"
_SCHEDULE = "expected schedule to be one of 1f1b, gpipe, interleaved, zbv, found"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"{_PAIRS} ''; write \"dp=2,pp=2\"."),
        ("dp", f"{_PAIRS} 'dp'; write"),
        ("dp=2,", f"{_PAIRS} ''; write"),
        ("dp=2;pp=2", f"expected dp {_NUMBER} '2;pp=2'; correct it."),
        ("microbatch=2", f"{_KEYS} 'microbatch'; did you mean microbatches?"),
        ("expert=2", f"{_KEYS} 'expert'; drop it."),
        ("DP=2", f"{_KEYS} 'DP'; drop it."),
        ("dp=2,dp=2", "expected each key once, found dp twice; keep one dp."),
        ("dp=0", f"expected dp {_NUMBER} '0'; correct it."),
        (
            "dp=4,zero=3,shard=1",
            "expected shard to be a whole number from 2 to 999999, found '1'; correct it.",
        ),
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
        (
            "grouped(groups=2)",
            "expected one of the presets baidu, gropipe, pipedream_2bw, found 'grouped'; ",
        ),
        (
            "gropipe(groups=2)",
            "expected gropipe with groups and stages, found 'groups=2'; write \"gropipe(groups=2,",
        ),
        (
            "gropipe(groups=2,stages=2),dp=4",
            "expected each key once, found dp twice; keep one dp.",
        ),
        ("gropipe(groups=two,stages=2)", f"expected dp {_NUMBER} 'two'; correct it."),
        ("staleness=-1", "expected staleness to be a whole number from 0 to 999999, found '-1'"),
        ("zero=4", "expected zero to be one of 0, 1, 2, 3, found 4; correct it."),
        ("sp=2", "expected sp to be one of off, on, found 2; correct it."),
        ("offload=disk", "expected offload to be one of none, cpu, found disk; correct it."),
        ("recompute=some", f"expected recompute to be none, full or {_NUMBER[6:]} 'some'; correct"),
        ("recompute=0", f"expected recompute to be none, full or {_NUMBER[6:]} '0'; correct it."),
        ("cuts=3-7-7", f"{_SERIES} '3-7-7'; write \"cuts=3-7-12\"."),
        ("pp=3,cuts=7-3", f"{_SERIES} '7-3'; write"),
        ("pp=2,cuts=0", f"{_SERIES} '0'; write"),
        ("pp=2,cuts=", f"{_SERIES} ''; write"),
        ("pp=2,cuts=3-", f"{_SERIES} '3-'; write"),
        ("pp=2,cuts=-3", f"{_SERIES} '-3'; write"),
        ("pp=2,cuts=1000000", f"{_SERIES} '1000000'; write"),
        ("pp=2,cuts=3 7", f"{_SERIES} '3 7'; write"),
        (
            "pp=2,cut=even",
            f"expected cut to be one of {', '.join(FIELDS['cut'].words)}, found even; correct it.",
        ),
        (
            "pp=2,cut=ampa,cuts=3",
            "expected either cut or cuts, found cut=ampa and cuts=3; drop one of them.",
        ),
        (
            "pp=2,cuts=3,cut=minimax",
            "expected either cut or cuts, found cut=minimax and cuts=3; drop one of them.",
        ),
        (
            "pp=2,stages=2",
            "expected 1 stage on a rank under schedule=1f1b, found stages=2; drop stages.",
        ),
        (
            "pp=2,schedule=interleaved,stages=1",
            "expected at least 2 stages on a rank under schedule=interleaved, found stages=1; drop",
        ),
    ],
)
def test_an_invalid_text_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        ParallelPlan.parse(text)

    assert refusal.value.exit_code is ExitCode.USAGE
    assert str(refusal.value).startswith(f"plan {text!r}: {message}")
    assert refusal.value.finding is not None
    assert refusal.value.finding.rule == "plan.text"


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    outcome: ParallelPlan | UserError
    try:
        outcome = ParallelPlan.parse(text)
    except UserError as refusal:
        outcome = refusal

    if isinstance(outcome, UserError):
        assert outcome.exit_code is ExitCode.USAGE
        assert len(str(outcome).splitlines()) == 1
    else:
        assert ParallelPlan.parse(str(outcome)) == outcome
