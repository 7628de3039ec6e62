from __future__ import annotations

import time

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.described import described_links

SXM, PCIE = "NVIDIA A100 SXM 80 GB", "NVIDIA A100 PCIe 80 GB"


@pytest.mark.parametrize(
    ("networking", "gb_per_s"),
    [
        ("1x Ethernet 40Gb/Sec, 8x ConnectX-6 IB HDR 200Gb/Sec", 8 * 25),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 8 * 50),
        (
            "Compute: 4 x Mellanox [ConnectX-6] HDR 200 Gb/Sec +  Management: 1 x 100 GB/Sec",
            4 * 25,
        ),
        ("Storage: 9x ConnectX-7 IB NDR 400Gb/s, Management: 1x Ethernet 100Gb/Sec", 8 * 25),
        ("Compute: 1 x ConnectX - 6 IB HDR100 100 Gb / Sec", 12.5),
        ("2x Cornelis Networks Omni-Path HFI Adapter 100 Series 100Gb/Sec", 25),
        ("BF3 200Gbps for NS and 2xBF3 400Gbps for EW", 100),
        ("ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", 504),
        ("8x HPE Slingshot SA210S Ethernet", 8 * 25),
        ("", 8 * 25),
        ("TODO", 8 * 25),
        (None, 8 * 25),
        (["8x HDR"], 8 * 25),
    ],
)
def test_adapters_between_nodes_are_read(networking: object, gb_per_s: float) -> None:
    links = described_links({"host_networking": networking}, SXM, 8)

    assert links.between.bytes_per_s * 8 == pytest.approx(0.92 * gb_per_s * 1e9)


def test_the_field_that_states_most_counts() -> None:
    description = {"host_networking": "Ethernet, Infiniband", "host_network_card_count": "8x NDR"}

    links = described_links(description, SXM, 8)

    assert links.between.bytes_per_s == pytest.approx(0.92 * 50e9)


def test_adapters_at_processors_are_slower() -> None:
    two = {"host_networking": "2x ConnectX-6 IB HDR 200Gb/Sec"}

    small, large = (described_links(two, SXM, count).between for count in (4, 8))

    assert small.bytes_per_s * 4 == pytest.approx(2 * 16e9)
    assert large.bytes_per_s * 8 == pytest.approx(2 * 23e9)


@pytest.mark.parametrize(
    ("host", "other", "gb_per_s"),
    [
        ("PCIe 3.0x16", "N/A", 10),
        ("", "PCIe Gen4: 64 GB / s", 20),
        ("PCIe, Gen5", "", 28),
        ("PCIe Gen5 Switch", "", 28),
        ("N/A", "N/A", 20),
    ],
)
def test_the_generation_of_pcie_is_read(host: str, other: str, gb_per_s: float) -> None:
    description = {"accelerator_host_interconnect": host, "accelerator_interconnect": other}

    assert described_links(description, PCIE, 8).inside.bytes_per_s == gb_per_s * 1e9


def test_the_device_decides_on_links_of_its_own() -> None:
    pcie = {"accelerator_host_interconnect": "PCIe 4.0x16"}
    gaudi = {"accelerator_interconnect": "10x 100Gb/s Ethernet"}

    nvlink = described_links(pcie, SXM, 8)
    rack = described_links({"host_networking": "1x Ethernet 10Gb/Sec"}, "NVIDIA GB200", 4)
    own = described_links(gaudi, "Habana Gaudi", 4)

    assert nvlink.inside.bytes_per_s == 230e9
    assert rack.between == rack.inside
    assert own.inside == own.between
    assert own.inside.bytes_per_s == pytest.approx(0.92 * 10 * 12.5e9)


@pytest.mark.parametrize("host", ["PCIe 4.0x16", ""])
def test_an_accelerator_that_is_not_known_is_refused(host: str) -> None:
    with pytest.raises(UserError) as refused:
        described_links({"accelerator_host_interconnect": host}, "TPU", 8)

    assert str(refused.value) == (
        "expected an accelerator of system/catalog.toml, or one with network adapters of its own, "
        "found 'TPU'; add it to the catalogue with its links."
    )
    assert refused.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    "text", ["0x HDR, 00 x EDR", "9" * 10**6 + "x Gb", "x " * 10**6, "1x 0Gb/s", "\u202e\x1b[2J"]
)
def test_hostile_text_is_bounded(text: str) -> None:
    began = time.process_time()
    links = described_links({"host_networking": text, "accelerator_interconnect": text}, PCIE, 8)

    assert time.process_time() - began < 1
    assert 1e8 < links.between.bytes_per_s < 1e13
