"""Projections of ten published rounds, which the model was not fitted to, beside their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.projection.round_errors import in_halves, summarize
from hybridperf.projection.rounds import Projected, Published, project_rounds
from hybridperf.report.judged import found_packages
from hybridperf.report.published_systems import is_projectable, published_system
from tests.rules.mlperf.published_rounds import published_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def projected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Projected]]:
    with published_rounds(tmp_path_factory) as folder:
        packages = [each for each in found_packages([folder]) if is_projectable(each)]
        found = [published_system(each) for each in packages]
        yield project_rounds(each for each in found if isinstance(each, Published))


def test_errors_are_within_the_bounds_that_the_documentation_states(
    projected: list[Projected],
) -> None:
    summary = summarize(projected)

    assert summary is not None
    assert summary.results > 100
    assert summary.median < 0.08
    assert summary.ninth_decile < 0.25
    assert {each.result.benchmark for each in projected} == {"bert", "resnet"}
    assert max(each.result.devices for each in projected) == 4216


def test_every_other_submitter_is_projected_as_well(projected: list[Projected]) -> None:
    for half in in_halves(projected):
        summary = summarize(half)

        assert summary is not None
        assert summary.results > 20
        assert summary.median < 0.08


def test_systems_of_thousands_of_devices_are_projected(projected: list[Projected]) -> None:
    large = [each for each in projected if each.result.devices > 1000]

    assert len(large) >= 6
    assert max(abs(each.error) for each in large) < 0.45
