from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hybridperf.log import keys
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.parallelize import chain_units, forward_flops, stage_slices
from hybridperf_reference.models import chain_of
from tests.engine.odd_models import ODD

ROOT = Path(__file__).parents[2]


def test_flops_of_convolutions_and_the_classifier_are_counted_by_hand() -> None:
    """A multiplication and an addition are two operations; batch norms are not counted."""
    chain = chain_of(find_task("resnet/laptop"), seed=0)

    flops = dict(
        zip((unit.name for unit in chain.units), forward_flops(chain.probe()), strict=True)
    )

    assert flops["stem"] == 2 * 9 * 1 * 16 * 16 * 16
    first = 16 * 16 + 9 * 16 * 16 + 16 * 64 + 16 * 64
    assert flops["layer1.0"] == 2 * first * 16 * 16
    assert flops["head"] == 2 * 512 * 10


def test_units_are_counted_as_stages_are_cut_by_them() -> None:
    chain = ODD["integers"].chain()

    units = chain_units(chain, chain.probe())

    # Of 64 pixels: an embedding of 17 words, a layer from 12 to 12 and one from 12 to 10.
    assert [unit.forward_flops for unit in units] == [0, 0, 2 * 12 * 12, 2 * 12 * 10]
    assert [unit.parameters for unit in units] == [0, 17 * 12, 12 * 12 + 12, 12 * 10 + 10]
    assert [unit.output_elements for unit in units] == [64, 12, 12, 10]
    assert [unit.begins_stage for unit in units] == [True, False, True, True]


def test_slices_of_stages_cover_the_units() -> None:
    chain = ODD["bare"].chain()
    units = chain_units(chain, chain.probe())

    whole, halves = (stage_slices(ParallelPlan.parse(text), units) for text in ("dp=2", "pp=2"))

    assert whole == [slice(0, len(units))]
    assert [unit for part in halves for unit in units[part]] == units


@pytest.mark.parametrize("name", ["resnet/laptop", "vgg/laptop", "vit/laptop", "bert/laptop"])
def test_a_trainer_cuts_where_a_projection_does(name: str) -> None:
    chain = chain_of(find_task(name), seed=0)
    table, units = load_units(name).units, chain_units(chain, chain.probe())

    for cut in FIELDS["cut"].words:
        for text in ("pp=2", "pp=3", "pp=2,schedule=zbv"):
            plan = ParallelPlan.parse(f"{text},cut={cut}")
            assert stage_cuts(plan, units) == stage_cuts(plan, table), plan


def test_published_results_were_cut_as_their_plans_are_today() -> None:
    seen = 0
    for path in sorted((ROOT / "submissions").rglob("result_0.txt")):
        values: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line.partition(":::MLLOG ")[2])
            values.setdefault(entry["key"], entry["value"])
        plan = ParallelPlan.parse(values[keys.PLAN])
        stages = values[keys.PARTITION]
        units = load_units(path.parent.name.replace("-", "/")).units
        edges = (0, *stage_cuts(plan, units), len(units))
        seen += len(stages) > 1
        assert [stage["units"] for stage in stages] == [
            [unit.name for unit in units[first:last]] for first, last in pairwise(edges)
        ], path

    assert seen >= 3, "of pipelines"
