"""The catalogue of MLPerf's benchmarks: names that people read, and software of descriptions."""

from __future__ import annotations

import pytest

from hybridperf.rules.mlperf.ruleset import known_benchmarks
from hybridperf.tasks.mlperf import benchmark_title, lineage, software


def test_every_benchmark_of_a_ruleset_has_a_title() -> None:
    same = {name for name in known_benchmarks() if benchmark_title(name) == name}

    assert same == set()


@pytest.mark.parametrize(
    ("name", "edition", "title"),
    [
        ("llama31_8b", "5.1", "Llama 3.1 8B"),
        ("ssd", "1.1", "SSD"),
        ("ssd", "2.0", "RetinaNet"),
        ("gnn", "4.0", "R-GAT"),
        ("nobody_knows", "5.1", "nobody_knows"),
        ("other", "", "other"),
    ],
)
def test_a_benchmark_is_called_as_people_call_it(name: str, edition: str, title: str) -> None:
    assert benchmark_title(name, edition) == title
    if lineage(name, edition) != name:
        assert benchmark_title(lineage(name, edition), edition) == title


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        ("CUDA 12.8, NCCL 2.25.1", "PyTorch; CUDA 12.8, NCCL 2.25.1"),
        ({"cuda_version": "12.4", "dali_version": "1"}, "PyTorch; CUDA 12.4"),
        ([{"rocm_version": "6.4.0"}], "PyTorch; ROCm 6.4.0"),
        ([{"cuda_version": "12.4"}, {"cuda_version": "12.5"}], "PyTorch"),
        ({"cuda_version": 12}, "PyTorch"),
        (None, "PyTorch"),
        ("", "PyTorch"),
        ("x" * 1000, "PyTorch; " + "x" * 120),
    ],
)
def test_software_is_the_framework_and_its_stack(stack: object, text: str) -> None:
    assert software({"framework": " PyTorch ", "other_software_stack": stack}) == text
    assert software({"framework": 3}) == ""
