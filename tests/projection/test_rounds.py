from __future__ import annotations

from dataclasses import replace

import pytest

from hybridperf.projection.described import Links
from hybridperf.projection.link import Link
from hybridperf.projection.round_errors import (
    in_halves,
    summarize,
    traits_of_worst,
    worst_decile,
)
from hybridperf.projection.rounds import (
    Projected,
    Published,
    averaging_s,
    averaging_share,
    project_rounds,
    projectable_benchmarks,
)

LINKS = Links(Link(3e-6, 200e9), Link(14e-6, 20e9))
BERT = projectable_benchmarks()["bert"]
SAMPLE_S = 3e-3


def _seconds(devices: int, batch: int, micro_batches: int = 1) -> float:
    """Return the seconds of a step by the model's own law, with `SAMPLE_S` for a sample."""
    message_bytes = BERT.parameters * BERT.gradient_bytes
    layers_s = micro_batches * 3 * BERT.layers * 26e-6  # of an A100
    samples_s = SAMPLE_S * batch / devices
    return samples_s + layers_s + averaging_s(message_bytes, devices, 8, LINKS)


def _published(devices: int, batch: int, *, micro_batches: int = 1, **changes: object) -> Published:
    one = Published(
        edition="2.1",
        submitter="acme",
        system=f"n{devices}",
        benchmark="bert",
        device="NVIDIA A100 SXM 80 GB",
        devices=devices,
        devices_per_node=8,
        links=LINKS,
        batch_size=batch,
        micro_batches=micro_batches,
        samples_per_s=batch / _seconds(devices, batch, micro_batches),
    )
    return replace(one, **changes)  # type: ignore[arg-type]  # fields of a result


def test_averaging_is_a_ring_in_the_node_and_one_between_nodes() -> None:
    inside = 2 * 7 * (3e-6 + 1e9 / 8 / 200e9)
    part = 1e9 / 8

    assert averaging_s(1e9, 8, 8, LINKS) == pytest.approx(inside)
    # Two nodes: a ring of two, each device with its eighth.
    between = 2 * (14e-6 + part / 2 / 20e9)
    assert averaging_s(1e9, 16, 8, LINKS) == pytest.approx(inside + between)
    assert averaging_s(1e9, 1, 8, LINKS) == 0
    assert averaging_s(1e9, 4, 8, LINKS) < inside


def test_systems_that_follow_the_model_are_projected_exactly() -> None:
    larger = [
        _published(64, 3072, micro_batches=4, system="accumulates"),
        _published(64, 3072),
        _published(1024, 4096),
    ]

    found = project_rounds([*larger, _published(8, 448)])

    assert [each.result for each in found] == larger
    assert [each.base.devices for each in found] == [8, 8, 8]
    assert [each.error for each in found] == [pytest.approx(0, abs=1e-12)] * 3


def test_layers_take_as_long_as_the_generation_of_the_device_says() -> None:
    results = [_published(8, 448), _published(1024, 4096)]

    def samples_per_s(device: str) -> float:
        return project_rounds([replace(each, device=device) for each in results])[0].samples_per_s

    names = ("NVIDIA H100 SXM", "NVIDIA GB200", "NVIDIA A100 SXM 80 GB", "Habana Gaudi")
    hopper, blackwell, ampere, other = map(samples_per_s, names)
    assert hopper > blackwell > ampere == other


def test_a_published_result_that_is_slower_is_projected_too_fast() -> None:
    slow = _published(64, 3072)
    slow = replace(slow, samples_per_s=slow.samples_per_s / 2)

    (found,) = project_rounds([_published(8, 448), slow])

    assert found.error == pytest.approx(1)


def test_the_base_is_of_the_same_maker_device_benchmark_and_round() -> None:
    base, large = _published(8, 448), _published(64, 3072)
    others = [
        replace(base, submitter="other"),
        replace(base, device="other"),
        replace(base, edition="3.0"),
        replace(base, benchmark="resnet"),
    ]

    for other in others:
        assert project_rounds([other, large]) == []


def test_of_several_smallest_systems_the_fastest_is_the_base() -> None:
    slow = replace(_published(8, 448), samples_per_s=1000.0, system="slow")
    fast = _published(8, 448)

    (found,) = project_rounds([slow, fast, _published(64, 3072)])

    assert found.base == fast


def test_what_a_later_round_repeats_is_projected_once() -> None:
    results = [_published(8, 448), _published(64, 3072)]
    again = [replace(each, edition="3.0") for each in results]

    assert len(project_rounds([*results, *again])) == 1


def test_links_that_cannot_be_as_slow_leave_a_tenth_of_the_step_for_samples() -> None:
    slow = Links(Link(1e-6, 1e6), Link(1e-6, 1e6))
    results = [_published(8, 448, links=slow), _published(64, 3072, links=slow)]

    (found,) = project_rounds(results)

    assert found.samples_per_s > 0
    assert averaging_share(found) > 0.9


def _off(error: float, **changes: object) -> Projected:
    result = replace(_published(64, 3072), **changes)  # type: ignore[arg-type]  # fields of a result
    return Projected(result, _published(8, 448), result.samples_per_s * (1 + error))


def test_errors_are_summarized() -> None:
    errors = [0.01, -0.02, 0.03, -0.04, 0.05, 0.06, 0.07, 0.08, 0.09, -0.5]

    summary = summarize([_off(error) for error in errors])

    assert summary is not None
    assert summary.results == 10
    assert summary.median == pytest.approx(0.055)
    assert summary.ninth_decile == pytest.approx(0.09)
    assert summary.worst_decile_mean == pytest.approx(0.5)
    assert summary.bias == pytest.approx(0.04)
    assert summarize([]) is None


def test_what_the_worst_have_in_common_is_found() -> None:
    usual = [_off(0.01 * (-1) ** number) for number in range(18)]
    worst = [_off(-0.9, devices=1024), _off(-0.8, devices=2048)]

    traits = {trait.words: trait for trait in traits_of_worst([*usual, *worst])}

    assert worst_decile([*usual, *worst]) == worst
    assert traits["more than 512 devices"].of_worst == 1
    assert traits["more than 512 devices"].of_others == 0
    assert "faster than projected" in traits
    assert "slower than projected" not in traits
    assert traits_of_worst([]) == []


def test_halves_are_of_whole_submitters() -> None:
    names = ("a", "b", "a", "c", "d")
    one, two = in_halves([_off(0.1, submitter=name) for name in names])

    assert {each.result.submitter for each in one} == {"a", "c"}
    assert {each.result.submitter for each in two} == {"b", "d"}
