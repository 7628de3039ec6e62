from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.plan import ParallelPlan, TrainingConfig
from hybridperf.plan.fields import FIELDS, LARGEST_NUMBER
from tests.plan.drawn import plans

CONFIG = TrainingConfig(units=6, global_batch_size=32, devices=4, ranks_per_device=1)
ROOMY = TrainingConfig(
    units=64,
    global_batch_size=64,
    devices=64,
    ranks_per_device=1,
    device_kind="cuda",
    tensor_sizes=(8, 48),
    tokens=64,
)


@st.composite
def configs(draw: st.DrawFn) -> TrainingConfig:
    """Draw a model, a batch and devices, plausible or not."""
    size = st.integers(0, 9) | st.integers(0, LARGEST_NUMBER)
    return TrainingConfig(
        units=draw(size),
        global_batch_size=draw(size),
        devices=draw(size),
        ranks_per_device=draw(size),
        device_kind=draw(st.sampled_from(["cpu", "cuda"])),
        tensor_sizes=tuple(draw(st.lists(size, max_size=3))),
        tokens=draw(st.none() | size),
        batch_norm=draw(st.booleans()),
        tied=draw(st.booleans()),
        compiler=draw(st.booleans()),
    )


_ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)


@settings(deadline=None)
@given(plans(), configs())
def test_inconsistent_plans_give_findings_and_raise_nothing(
    plan: ParallelPlan, config: TrainingConfig
) -> None:
    for finding in plan.check(config):
        assert finding.rule != "plan.text"
        assert finding.sentence.startswith(f"plan '{plan}': expected ")


@settings(deadline=None)
@given(plans(), configs(), st.sampled_from(sorted(FIELDS)), _ANYTHING)
def test_checking_a_plan_of_any_values_raises_nothing(
    plan: ParallelPlan, config: TrainingConfig, name: str, value: object
) -> None:
    changed = dataclasses.replace(plan, **{name: value})  # type: ignore[arg-type]  # on purpose

    findings = changed.check(config)

    if not FIELDS[name].admits(value):
        assert [finding.rule for finding in findings] == ["plan.text"]
        assert name in findings[0].expected
    elif not any(finding.rule == "plan.text" for finding in findings):
        assert ParallelPlan.parse(str(changed)) == changed


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
        "pp=2,cut=ampa",
        "pp=4,cuts=1-2-5",
        "pp=2,schedule=zbv,cuts=1-2-3",
        "dp=2,pp=2,staleness=1,cuts=5",
    ],
)
def test_a_plan_that_fits_has_no_findings(text: str) -> None:
    assert ParallelPlan.parse(text).check(CONFIG) == []


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
        ("pp=2,cuts=6", ["plan.cut"]),
        ("pp=2,cuts=3-6", ["plan.cut", "plan.cut"]),
        ("cuts=7", ["plan.cut"]),
    ],
)
def test_each_violated_constraint_is_a_finding(text: str, rules: list[str]) -> None:
    findings = ParallelPlan.parse(text).check(CONFIG)

    assert [finding.rule for finding in findings] == rules
    assert all(finding.sentence.startswith("plan '") for finding in findings)
    assert all(finding.sentence.endswith(".") for finding in findings)


@pytest.mark.parametrize(
    ("text", "rule", "message"),
    [
        ("sync=blocking", "replicas", "replicas (dp > 1) for sync=blocking"),
        ("zero=1", "replicas", "replicas (dp > 1) for zero=1"),
        ("dp=2,zero=1,sync=blocking", "sync", "sync=overlapped with zero"),
        ("dp=2,pp=2,zero=2", "zero", "it reduces gradients once a step, as zero=1 does"),
        ("dp=2,shard=2", "shard", "zero where shard is given"),
        ("dp=4,zero=3,shard=3", "shard", "shard to be a proper divisor of dp=4"),
        ("dp=2,zero=3,shard=4", "shard", "shard to be a proper divisor of dp=2"),
        ("dp=2,offload=cpu", "offload", "zero where offload is given"),
        ("sp=on", "sp", "tp > 1 for sp"),
        ("tp=3", "tp", "tp to divide the 8 heads or features that the model splits"),
        ("tp=16", "tp", "tp to divide the 8 heads or features that the model splits"),
        (
            "pp=3,schedule=interleaved,microbatches=7",
            "microbatches",
            "m to be a multiple of max(1, m // p) under schedule=interleaved",
        ),
        ("dp=2,pp=2,schedule=zbv", "split_backward", "it would come too early"),
        ("dp=2,pp=2,schedule=zbv,zero=3", "split_backward", "zero=3 frees parameters too early"),
        ("pp=2,schedule=zbv,compile=on", "split_backward", "a compiled backward pass cannot"),
        ("pp=2,schedule=zbv,recompute=full", "split_backward", "would recompute"),
        ("dp=2,pp=2,schedule=zbv,zero=1,bn=sync", "split_backward", "its collectives cannot"),
        ("gradients=bf16", "replicas", "replicas (dp > 1) for gradients=bf16"),
        ("dp=2,staleness=1,zero=1", "program", "no zero=1 with staleness=1"),
        ("tp=2,staleness=1", "program", "no tp=2 with staleness=1"),
        ("cp=2,tp=2,sp=on", "cp", "no sp=on with cp=2"),
        ("pp=2,cp=2,schedule=zbv", "cp", "no schedule=zbv with cp=2"),
        ("cp=2,compile=on", "cp", "no compile=on with cp=2"),
        ("pp=2,cp=2,links=int8", "program", "no cp=2 with links=int8"),
        ("dp=2,staleness=1,compile=on", "program", "no compile=on with staleness=1"),
        ("dp=2,staleness=1,sync=blocking", "program", "no sync=blocking with staleness=1"),
        ("pp=2,staleness=1,schedule=zbv", "program", "no schedule=zbv with staleness=1"),
        (
            "pp=2,staleness=1,schedule=interleaved",
            "program",
            "no schedule=interleaved with staleness=1",
        ),
        ("dp=2,staleness=1,flush=off", "flush", "pp > 1 and staleness for flush=off"),
        ("pp=2,flush=off", "flush", "pp > 1 and staleness for flush=off"),
        ("pp=2,staleness=1,schedule=gpipe,flush=off", "flush", "schedule=1f1b for flush=off"),
        (
            "pp=4,microbatches=2,staleness=1,flush=off",
            "flush",
            "staleness x microbatches of at least pp - 1 = 3 with flush=off",
        ),
        ("gradients=powersgd", "replicas", "replicas (dp > 1) for gradients=powersgd"),
        ("dp=2,zero=1,gradients=powersgd", "program", "no zero=1 with gradients=powersgd"),
        ("pp=2,tp=2,links=int8", "program", "no tp=2 with links=int8"),
        ("dp=2,gradients=powersgd,precision=fp16", "powersgd", "one loss scale"),
        ("dp=2,links=int8", "links", "a pipeline (pp > 1) for links=int8"),
        ("dp=2,tp=2,order=dp-pp-tp", "order", "order to move axes of more than one rank"),
        ("cut=uniform", "cut", "a pipeline (pp > 1) for cut=uniform"),
        ("dp=2,cuts=3-7", "cut", "a pipeline (pp > 1) for cuts=3-7"),
        ("pp=4,cuts=3-7", "cut", "3 numbers in cuts, one for each stage after the first"),
        ("pp=2,cuts=3-7", "cut", "1 number in cuts, one for each stage after the first"),
        ("pp=2,schedule=zbv,cuts=3", "cut", "3 numbers in cuts, one for each stage after"),
        ("pp=2,cuts=64", "cut", "cuts below 64, the number of units of the model"),
        ("bn=sync", "replicas", "replicas (dp > 1) for bn=sync"),
        ("balance=tokens", "replicas", "replicas (dp > 1) for balance=tokens"),
        ("dp=2,balance=tokens", "lengths", "samples of different lengths (filled = false) for"),
        ("bn=deferred", "bn", "more than one micro-batch for bn=deferred to merge"),
        ("tp=8,tensor=2d", "tensor", "tp to be one of 4, 9, 16, ... under tensor=2d"),
        ("tp=4,tensor=2.5d", "tensor", "tp to be one of 8, 12, 16, 18, ... under tensor=2.5d"),
        ("tp=4,tensor=3d", "tensor", "tp to be one of 8, 27, 64, ... under tensor=3d"),
        ("tensor=2d", "tensor", "tp to be one of 4, 9, 16, ... under tensor=2d"),
        ("tp=9,tensor=2d", "tensor", "3 to divide the 8 heads or features that the model splits"),
        ("tp=27,tensor=3d", "tensor", "9 to divide the 48 heads or features that the model splits"),
        (
            "tp=8,tensor=3d,microbatches=32",
            "tensor",
            "micro-batches of a multiple of 4 samples, which tensor=3d splits",
        ),
        ("tp=4,tensor=2d,sp=on", "tensor", "no sp=on with tensor=2d"),
        ("dp=2,tp=4,tensor=2d,zero=1", "tensor", "no zero=1 with tensor=2d"),
        ("tp=4,tensor=2d,compile=on", "tensor", "no compile=on with tensor=2d"),
        ("dp=2,tp=4,tensor=2d", "tensor", "no overlapped all-reduce with tensor=2d"),
        ("tp=4,tensor=2d,staleness=1", "program", "no tp=4 with staleness=1"),
    ],
)
def test_incorrect_combinations_are_refused_with_the_reason(
    text: str, rule: str, message: str
) -> None:
    findings = ParallelPlan.parse(text).check(ROOMY)

    assert [finding.rule for finding in findings if message in finding.expected] == [f"plan.{rule}"]


@pytest.mark.parametrize(
    ("config", "text", "message"),
    [
        ({"tokens": None}, "tp=2,sp=on", "units that work token by token for sp"),
        ({"tokens": 5}, "tp=4,sp=on", "a part of the 5 tokens of a sample for each rank under sp"),
        ({"tokens": None}, "cp=2", "units that work token by token for cp"),
        ({"tokens": 5}, "cp=4", "a part of the 5 tokens of a sample for each rank under cp"),
        (
            {"tied": True},
            "pp=2,staleness=1",
            "no staleness with pp where units share a parameter: their gradients are added up",
        ),
        (
            {"tied": True, "device_kind": "gpu"},
            "dp=2,zero=1,offload=cpu",
            "no offload where units share a parameter, which is not sharded",
        ),
        ({"batch_norm": False}, "bn=deferred,microbatches=2", "BatchNorm in the model"),
        ({"filled": False}, "tp=2,sp=on", "no sp=on with samples of different lengths"),
        ({"tokens": None}, "tp=4,tensor=2d", "units that work token by token for tensor=2d"),
        ({"filled": False}, "tp=4,tensor=2d", "no tensor=2d with samples of different lengths"),
        ({"filled": False}, "cp=2", "no cp=2 with samples of different lengths"),
        ({"filled": False}, "compile=on", "no compile=on with samples of different lengths"),
        ({"filled": False}, "pp=2,links=topk", "no links=topk with samples of different lengths"),
    ],
)
def test_plans_that_the_model_does_not_support_are_refused(
    config: dict[str, object], text: str, message: str
) -> None:
    findings = ParallelPlan.parse(text).check(
        dataclasses.replace(ROOMY, **config)  # type: ignore[arg-type]  # the rows above are typed
    )

    assert len(findings) == 1
    assert message in findings[0].expected


@pytest.mark.parametrize(
    "text",
    [
        "tp=4,tensor=2d",
        "tp=16,tensor=2d",
        "tp=8,tensor=2.5d",
        "tp=16,tensor=2.5d,microbatches=8",
        "dp=2,tp=8,tensor=3d,sync=blocking,recompute=full,precision=bf16",
        "pp=2,tp=4,tensor=2d,schedule=zbv,order=tp-pp-dp",
    ],
)
def test_a_plan_that_arranges_its_tp_ranks_has_no_findings(text: str) -> None:
    assert ParallelPlan.parse(text).check(ROOMY) == []


def test_a_finding_states_the_numbers_and_the_remedy() -> None:
    (finding,) = ParallelPlan.parse("dp=3").check(CONFIG)

    assert finding.sentence == (
        "plan 'dp=3': expected dp x microbatches to divide the batch of 32 samples, "
        "found 3 x 1 = 3; choose dp and microbatches from its divisors."
    )


def test_ranks_may_share_a_core_if_the_config_allows_it() -> None:
    shared = dataclasses.replace(CONFIG, ranks_per_device=4)

    assert ParallelPlan.parse("dp=16").check(shared) == []
    assert [each.rule for each in ParallelPlan.parse("dp=32").check(shared)] == ["plan.ranks"]


def test_the_number_of_units_limits_the_stages() -> None:
    many = dataclasses.replace(CONFIG, devices=64)

    assert ParallelPlan.parse("pp=6,microbatches=8").check(many) == []
    assert [each.rule for each in ParallelPlan.parse("pp=7,microbatches=8").check(many)] == [
        "plan.units"
    ]


@pytest.mark.parametrize(
    ("text", "equivalent"),
    [
        ("dp=1", True),
        ("dp=2,pp=2,tp=2,zero=1,order=dp-tp-pp", True),
        ("dp=2,balance=tokens", True),
        ("precision=bf16", True),  # one process computes in it, too
        ("dp=2,gradients=bf16", False),
        ("dp=2,gradients=powersgd", False),
        ("pp=2,links=int8", False),
    ],
)
def test_plans_equivalent_to_one_process(text: str, equivalent: bool) -> None:
    assert ParallelPlan.parse(text).equivalent is equivalent


@pytest.mark.parametrize(
    ("text", "span"),
    [("dp=2", 16), ("dp=2,microbatches=2", 8), ("dp=2,bn=sync,microbatches=2", 16)],
)
def test_batch_norm_span_is_a_micro_batch_or_all_replicas(text: str, span: int) -> None:
    assert ParallelPlan.parse(text).batch_norm_span(32) == span
