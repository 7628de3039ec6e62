"""A system fitted to throughput that another system would have."""

from __future__ import annotations

import dataclasses
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.fit import Fit, Observation, fit_system, fit_toml
from hybridperf.projection.project import project
from hybridperf.projection.systems import find_system, read_system
from hybridperf.projection.units import load_units

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.projection.systems import System

BASE = find_system("a100-sxm")
BERT, RESNET = "bert_large/cluster", "resnet50/cluster"


def _true() -> System:
    """Return a system that is 1.5 times as fast, with a slower network and faster launches."""
    rates = BASE.rates
    layer = msgspec.structs.replace(rates.layer, half_us=20.0, single_us=20.0)
    between = msgspec.structs.replace(BASE.between, achieved_gb_per_s=8.0)
    return dataclasses.replace(
        BASE, rates=dataclasses.replace(rates, speeds={BERT: 1.5}, layer=layer), between=between
    )


def _observed(
    system: System, plan: str, batch: int, task: str = BERT, noise: float = 0.0
) -> Observation:
    units, parsed = load_units(task), ParallelPlan.parse(f"{plan},precision=bf16")
    projection = project(
        parsed,
        units,
        system.timing(units, "bf16"),
        system.network,
        global_batch_size=batch,
        optimizer="lamb",
    )
    rate = projection.samples_per_s * (1 + noise)
    return Observation(f"{plan} {batch}", units, parsed, batch, 8, rate)


def _fit(*settings: tuple[str, int], noise: float = 0.002) -> Fit:
    """Return a fit to results with errors of ``noise`` in turns."""
    return fit_system(
        BASE,
        [
            _observed(_true(), plan, batch, noise=noise * (-1) ** number)
            for number, (plan, batch) in enumerate(settings)
        ],
    )


MANY = (
    *(("dp=1", batch) for batch in (1, 2, 4, 16)),
    *((f"dp={ranks},sync=blocking", 4 * ranks) for ranks in (8, 16, 64, 256)),
    *((f"dp={ranks},sync=blocking", 32 * ranks) for ranks in (16, 64)),
)


def test_what_many_plans_and_batches_determine_is_found() -> None:
    fit = _fit(*MANY)

    found = {each.name: each for each in fit.parameters}
    expected = {
        f"speed factor of {BERT}": 1.5,
        "launch overhead of a layer": 20.0,
        "bandwidth of an adapter between nodes": 8.0,
    }
    for name, value in expected.items():
        assert found[name].is_determined, name
        interval = found[name].interval
        assert interval is not None
        assert interval[0] <= value <= interval[1]
        assert interval[1] < 1.3 * interval[0]
    # All of these are on fast links, in a node or from node to node.
    assert not found["latency inside a node"].is_determined
    assert found["latency inside a node"].value == BASE.inside.latency_us
    accuracy = fit.accuracy
    assert accuracy is not None
    assert accuracy.results == len(MANY)
    assert 0.001 < accuracy.median < 0.01


@pytest.mark.parametrize("count", [2, 5])
def test_one_plan_and_one_batch_determine_the_speed_factor_alone(count: int) -> None:
    fit = _fit(*[("dp=8,sync=blocking", 64)] * count)

    determined = [each.name for each in fit.parameters if each.is_determined]
    assert determined == [f"speed factor of {BERT}"]
    assert fit.speeds[0].interval is not None
    assert fit.system.between == BASE.between
    assert fit.system.rates.layer == BASE.rates.layer


def test_one_result_has_neither_an_interval_nor_an_error() -> None:
    fit = _fit(("dp=8,sync=blocking", 64))

    assert fit.speeds[0].is_determined
    assert fit.speeds[0].interval is None
    assert (fit.errors, fit.accuracy) == ((), None)
    again = _observed(fit.system, "dp=8,sync=blocking", 64)
    assert again.samples_per_s == pytest.approx(fit.observations[0].samples_per_s)


def test_a_batch_without_nodes_says_nothing_about_links_between_them() -> None:
    fit = _fit(*[("dp=1", batch) for batch in (1, 2, 4, 8, 16, 32)])

    assert fit.overhead.is_determined
    assert not any(each.is_determined for each in fit.links.values())


def test_leave_one_out_errors_are_those_of_fits_to_the_others() -> None:
    fit = _fit(*MANY, noise=0.03)

    for number, left_out in enumerate(fit.observations):
        others = [each for each in fit.observations if each != left_out]
        rate = _observed(
            fit_system(BASE, others).system,
            left_out.name.split()[0],
            left_out.global_batch_size,
        ).samples_per_s
        error = rate / left_out.samples_per_s - 1
        assert fit.errors[number] == pytest.approx(error, abs=0.01)


def test_tasks_have_speed_factors_of_their_own_and_others_the_mean() -> None:
    true = _true()
    speeds = {BERT: 2.0, RESNET: 0.5}
    true = dataclasses.replace(true, rates=dataclasses.replace(BASE.rates, speeds=speeds))
    fit = fit_system(
        BASE,
        [_observed(true, "dp=1", batch, task) for task in speeds for batch in (8, 16, 32)],
    )

    assert [each.value for each in fit.speeds] == pytest.approx([2.0, 0.5], rel=1e-3)
    assert fit.system.rates.speed("vgg/cluster") == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("settings", [MANY, MANY[:1], MANY[:3]])
def test_the_file_of_a_fit_is_read_as_the_fitted_system(
    settings: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    fit = _fit(*settings)
    path = tmp_path / "mine.toml"
    path.write_text(text := fit_toml(fit, "mine"))

    system = read_system(path)

    assert system.name == "mine"
    assert system.device == BASE.device
    for plan, batch in MANY:
        one, other = (_observed(each, plan, batch).samples_per_s for each in (system, fit.system))
        assert one == pytest.approx(other, rel=2e-3)  # four digits
    if fit.accuracy is None:
        assert system.accuracy is None
        assert "unknown, since there is one result" in text
    else:
        assert system.accuracy is not None
        assert system.accuracy.median == pytest.approx(fit.accuracy.median, rel=1e-3)
        assert f"worst {fit.accuracy.worst:.1%}, of {len(settings)} results" in text
    assert "not determined by these logs: catalogue value kept" in text


def test_the_file_of_a_device_without_a_catalogue_entry_keeps_its_rates(tmp_path: Path) -> None:
    device = msgspec.structs.replace(BASE.device, name='Acme "1"', names=(), memory_gb=None)
    between = msgspec.structs.replace(BASE.between, name="wire", latency_us=99.0)
    shares = msgspec.structs.replace(BASE.rates.shares, memory=0.3)
    rates = dataclasses.replace(BASE.rates, shares=shares, speeds={"vit/laptop": 3.0})
    base = dataclasses.replace(BASE, device=device, between=between, rates=rates)
    fit = fit_system(base, [_observed(base, plan, batch) for plan, batch in MANY[:3]])
    path = tmp_path / "mine.toml"
    path.write_text(fit_toml(fit, "mine"))

    system = read_system(path)

    assert system.device == device
    assert system.between == between
    assert system.rates.shares == shares
    assert system.rates.speed("vit/laptop") == 3.0
    assert system.rates.layer.half_us == BASE.rates.layer.half_us
    assert system.network == fit.system.network


def test_a_device_without_the_precision_is_refused() -> None:
    observation = _observed(BASE, "dp=1", 8)

    with pytest.raises(Exception, match="a precision that NVIDIA V100 SXM has a peak of"):
        fit_system(find_system("v100-sxm"), [observation])
    assert median([abs(each) for each in fit_system(BASE, [observation] * 3).errors]) < 1e-6
