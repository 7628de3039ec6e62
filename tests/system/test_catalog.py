from __future__ import annotations

import itertools
import math

import pytest

from hybridperf.system.catalog import find_accelerator, known_accelerators


@pytest.mark.parametrize(
    ("described", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80 GB"),
        ("NVIDIA A100-SXM-80GB", "NVIDIA A100 SXM 80 GB"),
        ("NVIDIA A100-SXM-80GB CTS", "NVIDIA A100 SXM 80 GB"),
        ("NVIDIA A100-SXM4-80GB (400W)", "NVIDIA A100 SXM 80 GB"),
        ("NVIDIA A100-SXM-40GB", "NVIDIA A100 SXM 40 GB"),
        ("NVIDIA A100-PCIe-80GB", "NVIDIA A100 PCIe 80 GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80 GB"),
        ("NVIDIA A100", "NVIDIA A100 SXM 40 GB"),
        ("NVIDIA A30", "NVIDIA A30"),
        ("NVIDIA RTX A5000", "NVIDIA RTX A5000"),
        ("NVIDIA H100-SXM5-80GB", "NVIDIA H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200 SXM"),
        ("NVIDIA B200", "NVIDIA B200"),
        ("NVIDIA GB200", "NVIDIA GB200"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 SXM"),
        ("Tesla V100-PCIE-32GB", "NVIDIA V100 PCIe"),
        ("AMD Instinct MI250X", "AMD Instinct MI250X"),
        ("AMD Instinct MI250", "AMD Instinct MI250"),
        ("tpu-v3", "Google TPU v3"),
        ("TPUv4", "Google TPU v4"),
        ("Habana Gaudi2", "Habana Gaudi2"),
        ("Graphcore Bow IPU", "Graphcore Bow IPU"),
        ("NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("NVIDIA RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("Cambricon MLU370-X8", "Cambricon MLU370-X8"),
    ],
)
def test_accelerators_are_found_by_their_names_in_descriptions(described: str, name: str) -> None:
    accelerator = find_accelerator(described)

    assert accelerator is not None
    assert accelerator.name == name


@pytest.mark.parametrize(
    "described",
    ["", "N/A", "GPU", "NVIDIA A1000", "NVIDIA L40", "A10000", "tpu", "\u202e", "x" * 10**6],
)
def test_other_names_are_not_found(described: str) -> None:
    assert find_accelerator(described) is None


def test_a_long_name_is_truncated() -> None:
    assert find_accelerator("NVIDIA A100 " + "-" * 10**6) is not None
    assert find_accelerator("-" * 10**6 + " NVIDIA A100") is None


@pytest.mark.parametrize("accelerator", known_accelerators(), ids=lambda each: each.name)
def test_each_entry_has_plausible_numbers_and_a_source(accelerator: object) -> None:
    from hybridperf.system.catalog import Accelerator

    assert isinstance(accelerator, Accelerator)
    peaks = accelerator.peak_tflops
    assert set(peaks) <= {"fp8", "bf16", "fp16", "tf32", "fp32"}
    assert all(1 <= peak < 10_000 and math.isfinite(peak) for peak in peaks.values())
    order = [peaks[each] for each in ("fp8", "fp16", "tf32", "fp32") if each in peaks]
    assert order == sorted(order, reverse=True)  # the shorter the format, the faster
    for rate in (accelerator.memory_gb_per_s, accelerator.link_gb_per_s):
        assert rate is None or 10 <= rate < 20_000
    vendors = {"NVIDIA", "AMD", "Google", "Intel", "Graphcore", "Cambricon"}
    assert accelerator.source.split()[0] in vendors


def test_no_two_entries_share_a_name_or_a_pattern() -> None:
    entries = known_accelerators()
    patterns = list(itertools.chain.from_iterable(each.names for each in entries))

    assert len({each.name for each in entries}) == len(entries)
    assert len(set(patterns)) == len(patterns)
    assert all(find_accelerator(each.name) is not None for each in entries)
