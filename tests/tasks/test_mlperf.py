"""The catalogue of MLPerf's benchmarks: names that people read, and software of descriptions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.rules.mlperf.ruleset import known_benchmarks
from hybridperf.tasks.mlperf import benchmark_title, differences_from_bert, lineage, software
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import EvaluationSchedule, Initial

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

PAGE = Path(__file__).parents[2] / "docs/tasks.md"


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


def test_the_docs_list_what_differs_from_mlperf_s_bert() -> None:
    task = find_task("bert_large/cluster")
    head = ("", "MLPerf Training v2.1", f"`{task.name}`")
    first, *rows = (
        f"| {' | '.join(cells)} |".replace("|  |", "| |")
        for cells in (head, *differences_from_bert(task))
    )
    table = "\n".join([first, "|---|---|---|", *rows, ""])

    assert table in PAGE.read_text(encoding="utf-8"), f"paste this into {PAGE}:\n{table}"


def test_a_task_with_mlperf_s_schedule_and_decoder_does_not_differ_there() -> None:
    like = find_task("bert_large/cluster")
    task = dataclasses.replace(like, parallel=dataclasses.replace(like.parallel, tied=False))
    like = dataclasses.replace(
        like,
        optimizer=dataclasses.replace(like.optimizer, decay_from="start"),
        evaluation=EvaluationSchedule(every_samples=150_000),
        data=dataclasses.replace(like.data, filled=False),
        initial=Initial("bert.safetensors", "0" * 64, "transformers", 0.34085, 0.001),
    )

    here, there = (dict(_ours(each)) for each in (task, like))

    same = {"decoder", "learning rate", "padding", "tokens to predict", "initial weights"}
    assert here.keys() - there.keys() == same
    assert there["evaluations"] == "every 150,000 samples"


def _ours(task: Task) -> list[tuple[str, str]]:
    return [(what, ours) for what, _, ours in differences_from_bert(task)]
