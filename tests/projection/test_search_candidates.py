"""The plans that a search considers are all valid ones of the fields that it varies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from hybridperf.plan import SCHEDULES, ParallelPlan, TrainingConfig
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.search import Candidates, Methods, divisors

TRANSFORMER = {"tensor_sizes": (4, 8), "tokens": 16, "batch_norm": False}


def _config(units: int, batch: int, devices: int, **model: Any) -> TrainingConfig:
    return TrainingConfig(units, batch, devices, 1, "gpu", **model)


def _enumerated(candidates: Candidates) -> list[ParallelPlan]:
    return [
        plan
        for layout in candidates.layouts()
        for pipeline in candidates.pipelines(layout)
        for plan in candidates.plans(layout, pipeline)
    ]


def _by_brute_force(config: TrainingConfig, methods: Methods, shards: set[int]) -> set[str]:
    """Return the text of every plan of all devices, by every value of every varied field.

    But of those whose ``cp`` could be replicas, with fewer samples in a micro-batch.
    """
    found = set()
    sizes = divisors(config.devices)
    for dp, tp, pp, cp in itertools.product(sizes, repeat=4):
        if dp * tp * pp * cp != config.devices:
            continue
        choices: dict[str, Any] = {
            "tensor": FIELDS["tensor"].words.values() if tp > 1 else ("1d",),
            "microbatches": range(1, config.global_batch_size // dp + 1),
            "schedule": (None, *SCHEDULES) if pp == 1 else tuple(SCHEDULES),
            "stages": range(1, config.units + 1),
            "zero": FIELDS["zero"].words.values(),
            "shard": (None, *shards),
            "sync": FIELDS["sync"].words.values(),
            "sp": (False, True),
        }
        if methods == "other":
            choices |= {
                "staleness": (0, 1),
                "flush": (False, True),
                "links": FIELDS["links"].words.values(),
                "gradients": FIELDS["gradients"].words.values(),
            }
            choices |= {"shard": (None,), "sp": (False, True) if config.tokens else (False,)}
        for values in itertools.product(*choices.values()):
            fields = dict(zip(choices, values, strict=True))
            if fields["stages"] * pp > config.units or config.global_batch_size % (
                dp * fields["microbatches"]
            ):
                continue  # most, and refused: only to save time
            samples = config.global_batch_size // dp // fields["microbatches"]
            if math.gcd(samples, cp) > 1:
                continue
            plan = ParallelPlan(dp=dp, tp=tp, pp=pp, cp=cp, **fields)
            if not plan.check(config) and plan.equivalent == (methods == "equivalent"):
                found.add(str(plan))
    return found


@pytest.mark.parametrize(
    ("config", "methods"),
    [
        (_config(3, 4, 4, **TRANSFORMER), "equivalent"),
        (_config(2, 8, 8, **TRANSFORMER), "equivalent"),
        (_config(2, 1, 2, **TRANSFORMER), "other"),
        (_config(4, 6, 6), "equivalent"),
        (_config(4, 4, 4, tied=True), "equivalent"),
        (_config(3, 2, 2), "other"),
    ],
)
def test_every_valid_plan_is_considered_once(config: TrainingConfig, methods: Methods) -> None:
    plans = [str(plan) for plan in _enumerated(Candidates(config, config.devices, 8, methods))]

    assert len(plans) == len(set(plans)) > 1
    assert set(plans) == _by_brute_force(config, methods, shards=set())


def test_replicas_on_several_nodes_also_share_copies_within_a_node() -> None:
    config = _config(3, 8, 8)
    plans = [str(plan) for plan in _enumerated(Candidates(config, 8, 4))]

    alike = {text for text in plans if "order" not in text}
    assert "dp=8,zero=3,shard=4" in alike
    assert not any("shard=2" in text for text in alike if text.startswith("dp=8"))
    assert {"dp=4,pp=2,schedule=1f1b,microbatches=2,order=dp-pp-tp"} <= set(plans)
    assert not any("order" in str(plan) for plan in _enumerated(Candidates(config, 8, 8)))


def test_cp_ranks_move_with_the_axis_of_tp_ranks() -> None:
    plans = [str(plan) for plan in _enumerated(Candidates(_config(3, 2, 4, **TRANSFORMER), 4, 2))]

    assert {"dp=2,cp=2", "dp=2,cp=2,order=tp-dp-pp"} <= set(plans)


def test_all_plans_have_the_precision_that_is_asked_for() -> None:
    plans = _enumerated(Candidates(_config(3, 4, 4), 4, 8, precision="bf16"))

    assert {plan.precision for plan in plans} == {"bf16"}


@pytest.mark.parametrize("number", [1, 2, 36, 97, 65_520, 65_536])
def test_divisors_are_all_in_ascending_order(number: int) -> None:
    assert list(divisors(number)) == [n for n in range(1, number + 1) if number % n == 0]
