"""Projections of ten published rounds, beside their results."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from hybridperf.projection import rounds
from hybridperf.projection.round_errors import in_halves, summarize
from hybridperf.projection.rounds import Projected, Published, project_rounds
from hybridperf.report.judged import found_packages
from hybridperf.report.published_systems import is_projectable, published_system
from tests.rules.mlperf.published_rounds import published_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Published]]:
    with published_rounds(tmp_path_factory) as folder:
        packages = [each for each in found_packages([folder]) if is_projectable(each)]
        found = [published_system(each) for each in packages]
        yield [each for each in found if isinstance(each, Published)]


@pytest.fixture
def projected(published: list[Published]) -> list[Projected]:
    return project_rounds(published)


def test_errors_are_within_the_bounds_that_the_documentation_states(
    projected: list[Projected],
) -> None:
    summary = summarize(projected)

    assert summary is not None
    assert summary.results > 100
    assert summary.median < 0.042
    assert summary.ninth_decile < 0.25
    assert {each.result.benchmark for each in projected} == {"bert", "resnet"}
    assert max(each.result.devices for each in projected) == 4216


def test_what_is_fitted_to_every_other_submitter_projects_the_others(
    published: list[Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    def halves(layer_us: float) -> tuple[list[Projected], list[Projected]]:
        monkeypatch.setattr(rounds, "_layer_us", lambda: {"others": layer_us})
        return in_halves(project_rounds(published))

    fits = {layer_us: halves(layer_us) for layer_us in range(8, 60, 4)}
    for half in (0, 1):
        fitted_us = min(fits, key=lambda layer_us: _mean_error(fits[layer_us][half]))
        others = summarize(fits[fitted_us][1 - half])

        assert others is not None
        assert others.results > 15
        assert others.median < 0.05


def test_systems_of_thousands_of_devices_are_projected(projected: list[Projected]) -> None:
    large = [each for each in projected if each.result.devices > 128]
    summary = summarize(large)

    assert summary is not None
    assert summary.results >= 10
    assert summary.median < 0.05
    largest = [each for each in large if each.result.devices > 1000]
    assert len(largest) >= 6
    assert max(abs(each.error) for each in largest) < 0.12


def _mean_error(results: list[Projected]) -> float:
    return fmean(min(abs(math.log1p(each.error)), 0.5) for each in results)
