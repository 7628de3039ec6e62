from __future__ import annotations

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.systems import System, find_link, find_system, known_systems
from hybridperf.system.catalog import known_accelerators


@pytest.mark.parametrize("system", known_systems(), ids=lambda each: each.name)
def test_a_system_is_complete(system: System) -> None:
    network = system.network

    assert system.memory_bytes >= 8e9
    assert system.device in known_accelerators()
    assert network.devices_per_node == system.devices_per_node
    assert network.between is not None
    # All adapters of a node together, however many devices share one.
    together = network.between.own_bytes_per_s * system.devices_per_node
    stated = system.between.achieved_gb_per_s * 1e9 * system.adapters_per_node
    assert together == pytest.approx(stated)
    for link in (system.inside, system.between):
        assert 0 < link.achieved_gb_per_s <= link.peak_gb_per_s
        assert 0 < link.latency_us < 100
        assert len(link.source) > 20


def test_systems_have_the_names_that_plans_are_projected_for() -> None:
    names = {system.name for system in known_systems()}

    assert names >= {
        *("v100-pcie", "v100-sxm", "a100-pcie", "a100-sxm", "h100-sxm", "h200-sxm", "b200"),
        *("mi300x", "rtx-2080ti", "rtx-3090", "rtx-4090", "mlu370"),
    }
    assert len(names) == len(known_systems())


def test_the_links_of_nvlink_systems_are_faster_than_those_of_pcie_systems() -> None:
    nvlink, pcie = find_system("a100-sxm").network, find_system("a100-pcie").network

    assert nvlink.inside.bytes_per_s == 230e9
    assert pcie.inside.bytes_per_s == 20e9
    assert nvlink.inside.latency_s == pytest.approx(3.4e-6)
    assert nvlink.between is not None
    assert pcie.between is not None
    assert nvlink.between.shared_by == 1
    assert pcie.between.shared_by == 8


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean h100-sxm") as refused:
        find_system("h100-sxn")

    assert refused.value.exit_code is ExitCode.USAGE
    with pytest.raises(KeyError):
        find_link("string")
