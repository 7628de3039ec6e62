from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.systems import System, find_link, find_system, known_systems
from hybridperf.system.catalog import known_accelerators

if TYPE_CHECKING:
    from pathlib import Path


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


MINE: Final = """
[[system]]
name = "mine"
device = "NVIDIA A100 SXM 80 GB"
devices_per_node = 4
inside = "mine inside"
between = "ethernet-100"
adapters_per_node = 1

[[link]]
name = "mine inside"
peak_gb_per_s = 300
achieved_gb_per_s = 200.5
latency_us = 5
source = "a test"
"""


def test_a_file_has_what_differs_from_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)

    system = find_system(str(path))

    assert system.inside.achieved_gb_per_s == 200.5
    assert system.between == find_link("ethernet-100")
    assert system.device == find_system("a100-sxm").device
    assert system.rates == find_system("a100-sxm").rates
    assert system.network.between is not None
    assert system.network.between.shared_by == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("inside", "inzide"), "an invalid entry: Object contains unknown field `inzide`"),
        (("200.5", '"fast"'), "got `str` - at `$.link[0].achieved_gb_per_s`"),
        (("200.5", "-1"), "Expected `float` > 0.0 - at `$.link[0].achieved_gb_per_s`"),
        (("200.5", "nan"), "Expected `float`"),
        (('"ethernet-100"', '"ethernet-1000"'), "the name 'ethernet-1000'"),
        (("NVIDIA A100 SXM 80 GB", "Acme 1"), "the name 'Acme 1'"),
        (("[[system]]", "[[system]"), "invalid TOML: Expected"),
        (("[[system]]", "[[systems]]"), "unknown field `systems`"),
        ((MINE, ""), "0 tables [[system]] instead of one"),
        (("adapters_per_node = 1", "adapters_per_node = 0"), "Expected `int` >= 1"),
        (("[[link]]", "[link]"), "Expected `array`, got `object` - at `$.link`"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(*change, 1))

    with pytest.raises(UserError) as refused:
        find_system(str(path))

    assert refused.value.exit_code is ExitCode.USAGE
    assert said.lower() in str(refused.value).lower()
    assert str(refused.value).startswith(f"{path}: expected a system file in the format of the ")


@pytest.mark.parametrize("content", [b"\xff", b"a = " + b"[" * 9999, None])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UserError, match="expected a system file") as refused:
        find_system(str(path))

    assert refused.value.exit_code is ExitCode.USAGE


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean h100-sxm") as refused:
        find_system("h100-sxn")

    assert refused.value.exit_code is ExitCode.USAGE
    with pytest.raises(KeyError):
        find_link("string")
