from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import load
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.registry import find_task, parse_task, read_task, task_names, task_path
from hybridperf.tasks.task import Bound, EvaluationSchedule, Task

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def task() -> Task:
    return find_task("resnet/laptop")


def _with_schedule(task: Task, first: int, every: int, limit: int) -> list[tuple[int, int]]:
    changed = dataclasses.replace(
        task,
        evaluation=EvaluationSchedule(first, every),
        limits=dataclasses.replace(task.limits, epochs=limit),
    )
    return [(block.first, block.last) for block in changed.blocks()]


@pytest.mark.parametrize(
    ("first", "every", "limit", "blocks"),
    [
        (1, 1, 3, [(1, 1), (2, 2), (3, 3)]),
        (2, 4, 10, [(1, 2), (3, 6), (7, 10)]),
        (4, 4, 11, [(1, 4), (5, 8)]),
        (3, 1, 4, [(1, 3), (4, 4)]),
        (5, 1, 4, []),
    ],
)
def test_each_block_ends_at_an_evaluation(
    task: Task, first: int, every: int, limit: int, blocks: list[tuple[int, int]]
) -> None:
    assert _with_schedule(task, first, every, limit) == blocks


def test_blocks_cover_every_epoch_once(task: Task) -> None:
    epochs = [epoch for block in task.blocks() for epoch in range(block.first, block.last + 1)]

    assert epochs == list(range(1, task.limits.epochs + 1))


def test_blocks_end_with_the_last_whole_batch_of_their_epochs(task: Task) -> None:
    steps = [task.steps(block) for block in task.blocks()]

    assert task.steps_per_epoch == 1195 / 32
    assert steps[0] == range(37)
    assert [each.stop for each in steps] == [epoch * 1195 // 32 for epoch in range(1, 15)]
    assert [step for each in steps for step in each] == list(range(14 * 1195 // 32))


def test_blocks_in_samples_end_with_the_last_whole_batch(task: Task) -> None:
    schedule = EvaluationSchedule(every_samples=700)
    limits = dataclasses.replace(task.limits, epochs=2)
    changed = dataclasses.replace(task, evaluation=schedule, limits=limits)

    blocks = changed.blocks()

    assert [block.last for block in blocks] == [672, 1376, 2080], "of 2,390 samples, 32 a batch"
    assert [changed.steps(block) for block in blocks] == [range(21), range(21, 43), range(43, 65)]
    assert blocks[1].start_metadata() == {"samples_count": 672}
    assert blocks[1].stop_metadata() == blocks[1].metadata() == {"samples_count": 1376}


def test_a_task_is_named_by_its_path_and_hashed(task: Task) -> None:
    content = task_path(task.name).read_bytes()

    assert task.sha256 == hashlib.sha256(content).hexdigest()
    assert (task.name, task.family, task.slug) == ("resnet/laptop", "resnet", "resnet-laptop")


@pytest.mark.parametrize("name", task_names())
def test_tasks_of_the_suite_are_consistent(name: str) -> None:
    task = find_task(name)

    assert task.name == name
    assert len(set(task.units)) == len(task.units) > 1
    assert 0 < task.quality.target < 1
    # Two samples, or where there are many, what half the bits may tip.
    assert task.quality.rescoring_tolerance <= max(1e-3, 2.1 / task.data.eval_samples)
    assert task.blocks()
    assert task.blocks()[-1].last == task.limits.epochs
    assert 0 <= task.runs.most_missed < task.runs.count
    assert task.runs.count >= 3
    assert set(task.closed) <= set(hyperparameters(task))
    for key, bound in task.closed.items():
        value = hyperparameters(task)[key]
        assert isinstance(value, int | float)
        assert bound.admits(value)


def test_mean_and_deviation_are_those_of_the_training_images(task: Task) -> None:
    pixels = load(task.data).train.inputs / 255

    assert pixels.mean() == pytest.approx(task.data.mean, abs=5e-5)
    assert pixels.std() == pytest.approx(task.data.std, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet/latpop", "; did you mean resnet/laptop"),
        ("bert", "; did you mean bert/laptop"),
        ("qqq", "found 'qqq'; 'hybridperf list' shows all."),
    ],
)
def test_an_unknown_task_is_refused_with_suggestions(name: str, near: str) -> None:
    with pytest.raises(UserError) as refusal:
        find_task(name)

    assert refusal.value.exit_code is ExitCode.USAGE
    assert f"found {name!r}" in str(refusal.value)
    assert near in str(refusal.value)
    assert str(refusal.value).endswith("'hybridperf list' shows all.")


@pytest.mark.parametrize("name", ["../tasks/resnet/laptop", "/etc/passwd", "", "resnet/laptop\0"])
def test_a_path_is_not_accepted_as_a_name(name: str) -> None:
    with pytest.raises(UserError):
        task_path(name)


@pytest.mark.parametrize("content", [b"name = ", b"\xff", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(content)

    with pytest.raises(UserError) as refusal:
        read_task(path)

    assert refusal.value.exit_code is ExitCode.USAGE
    assert str(refusal.value).startswith(f"{path}: expected a TOML file of UTF-8 text, found ")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_task(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("target = 0.98", "target = '98 %'", "a value of type float at 'quality.target'"),
        ("target = 0.98", "goal = 0.98", "at 'quality.goal'"),
        ("count = 5", "", "expected a value at 'runs.count', found none"),
        (
            'name = "sgd"',
            'name = "adam"',
            "expected one of sgd, adamw, lars, lamb at 'optimizer.name'",
        ),
        ("minimum = 1\n", "minimum = 'one'\n", "closed.training.global_batch_size.minimum"),
    ],
)
def test_a_task_that_violates_the_schema_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = task_path("resnet/laptop").read_text()
    path = tmp_path / "task.toml"
    path.write_text(text.replace(old, new, 1))

    assert old in text
    with pytest.raises(UserError) as refusal:
        read_task(path)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("bound", "admitted", "refused", "text"),
    [
        (Bound(minimum=1), [1, 1.5, 1e9], [0.999, 0, -1], "at least 1"),
        (Bound(maximum=2), [2, -5], [2.001], "at most 2"),
        (Bound(1e-5, 1e-2), [1e-5, 1e-2, 5e-4], [9e-6, 0.0101], "at least 1e-05 and at most 0.01"),
        (
            Bound(multiple_of=0.001),
            [0.001, 0.1, 0.123, 3],
            [0.0005, 0.1234, 0, -0.1],
            "a multiple of 0.001",
        ),
    ],
)
def test_bounds_include_their_ends(
    bound: Bound, admitted: list[float], refused: list[float], text: str
) -> None:
    assert [value for value in admitted if not bound.admits(value)] == []
    assert [value for value in refused if bound.admits(value)] == []
    assert str(bound) == text


@pytest.mark.parametrize(
    ("units", "numbers", "expected"),
    [
        ('"layers.{layers}", "head"', "layers = 2", ("layers.0", "layers.1", "head")),
        ('"conv{depths}"', "depths = [1, 2]", ("conv1.0", "conv2.0", "conv2.1")),
        ('"stem", "{layers}.mlp"', "layers = 1", ("stem", "0.mlp")),
    ],
)
def test_units_are_numbered_as_the_model_states(
    units: str, numbers: str, expected: tuple[str, ...]
) -> None:
    text = task_path("vit/cluster").read_text()
    text = re.sub(r"units = .*", f"units = [{units}]", text)
    text = re.sub(r"layers = .*", numbers, text)

    task = parse_task(text.encode(), "task.toml")

    assert task.units == expected
    assert dataclasses.replace(task, version=2).units == expected
