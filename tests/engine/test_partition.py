from __future__ import annotations

from hybridperf.plan import ParallelPlan
from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.partition import chain_units, forward_flops, stage_slices
from hybridperf_reference.models import chain_of
from tests.engine.odd_models import ODD


def test_flops_of_convolutions_and_the_classifier_are_counted_by_hand() -> None:
    """A multiplication and an addition are two operations; batch norms are not counted."""
    chain = chain_of(find_task("resnet/laptop"), seed=0)

    flops = dict(zip((unit.name for unit in chain.units), forward_flops(chain), strict=True))

    assert flops["stem"] == 2 * 9 * 1 * 16 * 16 * 16
    first = 16 * 16 + 9 * 16 * 16 + 16 * 64 + 16 * 64
    assert flops["layer1.0"] == 2 * first * 16 * 16
    assert flops["head"] == 2 * 512 * 10


def test_units_are_counted_as_stages_are_cut_by_them() -> None:
    chain = ODD["integers"].chain()

    units = chain_units(chain, chain.boundaries())

    # Of 64 pixels: an embedding of 17 words, a layer from 12 to 12 and one from 12 to 10.
    assert [unit.forward_flops for unit in units] == [0, 0, 2 * 12 * 12, 2 * 12 * 10]
    assert [unit.parameters for unit in units] == [0, 17 * 12, 12 * 12 + 12, 12 * 10 + 10]
    assert [unit.output_elements for unit in units] == [64, 12, 12, 10]
    assert [unit.begins_stage for unit in units] == [True, False, True, True]


def test_slices_of_stages_cover_the_units() -> None:
    chain = ODD["bare"].chain()
    units = chain_units(chain, chain.boundaries())

    whole, halves = (stage_slices(ParallelPlan.parse(text), units) for text in ("dp=2", "pp=2"))

    assert whole == [slice(0, len(units))]
    assert [unit for part in halves for unit in units[part]] == units
