"""``hybridperf export``, and a run that begins from what it wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.log import keys
from hybridperf.log.package import find_results
from hybridperf.log.reader import read_log
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import task_path
from tests.packages import write_result
from tests.run.conftest import Bench, bench, finished

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished

__all__ = ["bench"]


def test_a_run_begins_where_an_exported_one_has_ended(bench: Bench, tmp_path: Path) -> None:
    """One epoch of the reference; a pipeline of two stages begins from its weights."""
    bench.change_task(epochs=1)
    whole = ("run", "resnet/laptop", "--runs", "1", "--out")
    assert finished(bench.command(*whole, str(bench.out), "--keep-weights")).code == 1  # it misses
    folder = bench.package.folder
    out = tmp_path / "exported"

    done = bench.say("export", str(folder), "--format", "torchvision", "--out", str(out))
    assert done.code == 0, done
    assert "torchvision builds no model of these sizes" in done.out
    assert sorted(path.name for path in out.iterdir()) == ["model.safetensors", "result_0.json"]
    manifest = (folder / "result_0.json").read_bytes()
    assert (out / "result_0.json").read_bytes() == manifest
    again = bench.say("export", str(folder), "--format", "torchvision", "--out", str(out))
    assert again.code == 2
    assert "expected a folder that does not exist yet" in again.sentence

    begin = (*whole, str(tmp_path / "second"), "--initial", str(out / "model.safetensors"))
    refused = bench.say(*begin)
    assert refused.code == 2
    assert "found --initial model.safetensors" in refused.sentence
    finished(bench.command(*begin, "--division", "open", "--plan", "pp=2"))
    (second,) = find_results(tmp_path / "second")
    entry = read_log(second.folder / "result_0.txt").value(keys.INITIAL)
    assert isinstance(entry, dict)
    facts = json.loads((second.folder / "result_0.json").read_text())
    assert facts["initial"] == {key: entry[key] for key in ("file", "sha256")}
    assert entry["quality"] == json.loads(manifest)["rescoring"]["quality"]

    task = bench.tasks / "resnet/laptop.toml"
    stated = f'file = "model.safetensors"\nsha256 = "{entry["sha256"]}"\nformat = "torchvision"'
    table = f"\n[initial]\n{stated}\nquality = 0.99\ntolerance = 0.01\n"
    task.write_text(task.read_text() + table)
    other = bench.say(*whole, str(tmp_path / "third"), "--data-dir", str(out))
    assert other.code == 4
    assert "model.safetensors: expected a first quality of 0.99 +- 0.01" in other.sentence
    assert find_results(tmp_path / "third") == []


def test_a_result_without_weights_is_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    package = write_result(tmp_path / "made")
    arguments = ("--format", "torchvision", "--out", str(tmp_path / "out"))

    done = hybridperf("export", str(package.folder), *arguments)

    assert done.code == 4
    assert "expected the weights of a run beside its log, found none" in done.sentence
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_elsewhere_needs_its_task(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "progress.json").write_text("{}")

    done = hybridperf(
        *("export", str(tmp_path), "--format", "torchvision", "--out", str(tmp_path / "out"))
    )

    assert done.code == 2
    assert "name the task with --task" in done.sentence


@pytest.mark.parametrize("option", ["--format", "--out"])
def test_format_and_folder_are_required(hybridperf: Callable[..., Finished], option: str) -> None:
    given = {"--format": "torchvision", "--out": "out"}
    del given[option]

    done = hybridperf("export", "result", *(word for pair in given.items() for word in pair))

    assert done.code == 2
    assert option in done.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"weights", "expected weights with SHA-256 abababababab..., as mine/own states, found "),
        (None, "model.safetensors: expected a file of weights, found no such file or directory"),
    ],
)
def test_a_run_from_another_file_than_the_task_states_is_refused(
    hybridperf: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
    words: str,
) -> None:
    text = task_path("resnet/laptop").read_text().replace("resnet/laptop", "mine/own")
    own = tmp_path / "task.toml"
    own.write_text(
        f'{text}\n[initial]\nfile = "model.safetensors"\nsha256 = "{"ab" * 32}"\n'
        'format = "torchvision"\nquality = 0.5\ntolerance = 0.01\n'
    )
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)

    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))

    done = hybridperf("run", str(own), "--out", str(tmp_path / "out"))

    assert done.code == 4
    assert words in done.sentence
    assert not (tmp_path / "out").exists()
