"""Numbers and names that no task can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import check_data
from hybridperf.tasks.registry import parse_task, read_task, resolve_task, task_path

if TYPE_CHECKING:
    from pathlib import Path

TEXT = task_path("resnet/laptop").read_text()
INITIAL = """
[initial]
file = "../w"
sha256 = "ab"
format = "torchvision"
quality = 34.0
tolerance = 0.1

"""
SCHEDULE, WARMUP = "first_epoch = 1\nevery_epochs = 1", "warmup_epochs = 2"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "resnet/laptop"', 'name = "laptop"', "expected name = family/tier"),
        ('name = "resnet/laptop"', 'name = "../laptop"', "found '../laptop'"),
        ('name = "resnet/laptop"', 'name = "a/b/c"', "found 'a/b/c'"),
        ('"layer1.0", ', '"stem", ', "units with distinct names"),
        (
            '"head"]',
            '"{heads}"]',
            "{key} in units to name a whole number, or a list of them, in [model]",
        ),
        ('"head"]', '"{stem}"]', "in [model], found '{stem}'"),
        ('"head"]', '"{width}{classes}"]', "in [model], found '0{classes}'"),
        (
            '"head"]\n\n[model]',
            '"{n}"]\n\n[model]\nn = 9999999999',
            "at most 10000 units, found more",
        ),
        ("every_epochs = 1", "every_epochs = 0", "evaluation.every_epochs at least 1, found 0"),
        ("epochs = 14\n", "epochs = 1000000000\n", "limits.epochs from 1 to 100000"),
        ("first_epoch = 1", "first_epoch = 15", "evaluation.first_epoch from 1 to 14, found 15"),
        ("global_batch_size = 32", "global_batch_size = 0", "global_batch_size from 1 to 1195"),
        ("target = 0.98", "target = 98.0", "quality.target from 0 to 1, found 98.0"),
        ("count = 5", "count = 0", "runs.count at least 1, found 0"),
        (
            "[evaluation]",
            f"{INITIAL}[evaluation]",
            "the name of a file, without a folder, found '../w'",
        ),
        (
            "[evaluation]",
            f"{INITIAL}[evaluation]".replace("../w", "w"),
            "64 hexadecimal digits, found 'ab'",
        ),
        (
            "[evaluation]",
            f"{INITIAL}[evaluation]".replace("../w", "w").replace("ab", "ab" * 32),
            "initial.quality from 0 to 1, found 34.0",
        ),
        ("every_epochs = 1", "every_samples = 700", "evaluation.first_epoch from 0 to 0, found 1"),
        (SCHEDULE, "every_samples = 31", "evaluation.every_samples from 32 to 16730, found 31"),
        (SCHEDULE, "every_samples = 16731", "every_samples from 32 to 16730, found 16731"),
        (SCHEDULE, "", "evaluation.first_epoch from 1 to 14, found 0"),
        (
            WARMUP,
            f"{WARMUP}\nwarmup_steps = 1",
            "optimizer.warmup_epochs or optimizer.warmup_steps",
        ),
        (WARMUP, f"{WARMUP}\ndecay_steps = 1", "or optimizer.decay_steps to be 0, found both"),
        (WARMUP, f"{WARMUP}\nstart_warmup_step = 1", "start_warmup_step from -1e+09 to 0, found 1"),
        (WARMUP, f"{WARMUP}\ndecay_from = 'end'", "one of start, warmup at"),
    ],
)
def test_values_out_of_bounds_are_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UserError) as refusal:
        parse_task(TEXT.replace(old, new, 1).encode(), "task.toml")

    assert refusal.value.exit_code is ExitCode.USAGE
    assert str(refusal.value).startswith("task.toml: expected ")
    assert message in str(refusal.value)


def test_a_task_is_named_by_its_name_or_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)

    assert resolve_task(str(path)) == path
    assert read_task(resolve_task("resnet/laptop")) == read_task(path)
    with pytest.raises(UserError, match="did you mean"):
        resolve_task("resnet/latpop")


def test_an_unknown_data_source_is_refused() -> None:
    task = parse_task(TEXT.replace('name = "digits"', 'name = "letters"').encode(), "task.toml")

    with pytest.raises(UserError, match=r"expected data\.name to be one of .*, found 'letters'"):
        check_data(task.data)
