"""``hybridperf prepare`` as a user gives it, and trainings of what it made."""

from __future__ import annotations

import json
import re
import resource
from typing import TYPE_CHECKING

import datasets
import pytest

from hybridperf.log.reader import read_log
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import task_path
from tests.texts import SPECIAL, WORDS, wikitext, write_lines, write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished


def write_task(path: Path, vocabulary_sha256: str, entries: int, target: float) -> None:
    """Write a task of a small BERT, of which one run makes a result."""
    text = task_path("bert/workstation").read_text().replace("bert/workstation", "bert/mine", 1)
    numbers = {
        "units": '["embeddings", "layers.0", "layers.1", "head"]',
        "vocabulary": len(SPECIAL) + entries,
        "vocabulary_sha256": f'"{vocabulary_sha256}"',
        "tokens": 32,
        "masked": 4,
        "hidden": 32,
        "layers": 2,
        "heads": 2,
        "inner": 64,
        "tensor_sizes": "[2, 64]",
        "train_samples": 640,
        "eval_samples": 60,
        "target": target,
        "count": 1,
        "most_missed": 0,
        "global_batch_size": 32,
        "lr": 3e-3,
        "warmup_epochs": 0,
    }
    for key, value in numbers.items():
        changed = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert changed != text, key
        text = changed
    path.write_text(text)


@pytest.fixture(autouse=True)
def _no_folder_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no folder of data, and forget those that commands of this process name."""
    monkeypatch.setenv(DATA_VARIABLE, "")
    monkeypatch.delenv(DATA_VARIABLE)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a folder in which a set of text to train on was saved, with nothing held out."""
    place = tmp_path / "text"
    words = " ".join(word for word in WORDS if not word.startswith("##"))
    rows = datasets.Dataset.from_dict({"text": [words] * 12_000})
    datasets.DatasetDict({"train": rows}).save_to_disk(place, num_shards={"train": 2})
    capsys.readouterr()  # its bars are none of the command's
    return place


@pytest.fixture
def task(tmp_path: Path, folder: Path) -> Path:
    """Return a task that reads it; its words come in one order, so that neighbours tell them."""
    path = tmp_path / "mine.toml"
    write_task(path, write_vocabulary(folder), len(WORDS), target=0.2)
    return path


def _run(
    hybridperf: Callable[..., Finished], task: Path, folder: Path, plan: str, out: Path
) -> dict[str, object]:
    done = hybridperf(
        *("run", str(task), "--data-dir", str(folder), "--plan", plan),
        *("--json", "--out", str(out)),
    )
    assert done.code == 0, done.err
    answer: dict[str, object] = json.loads(done.out)
    return answer


def test_a_task_of_text_is_prepared_trained_sealed_and_valid(
    hybridperf: Callable[..., Finished], tmp_path: Path, task: Path, folder: Path
) -> None:
    run = ("run", str(task), "--data-dir", str(folder), "--out", str(tmp_path / "out"))
    before = hybridperf(*run)
    assert before.code == 4
    assert before.err.startswith("hybridperf: data set texts: expected the tokens of the text in ")
    assert before.err.endswith("'hybridperf prepare TASK --data-dir FOLDER'.\n")

    done = hybridperf("prepare", str(task), "--data-dir", str(folder))
    again = hybridperf("prepare", str(task), "--data-dir", str(folder))

    assert (done.code, done.err) == (0, "")
    sha256 = re.search("[0-9a-f]{64}", done.out)
    assert sha256 is not None
    says = f"SHA-256 of the data: {sha256[0]}.\n"
    assert done.out == f"bert/mine: prepared; {says}"
    assert again.out == f"bert/mine: already prepared; {says}"
    answer = _run(hybridperf, task, folder, "dp=2", tmp_path / "out")
    assert answer["findings"] == []
    (manifest,) = tmp_path.rglob("out/**/result_0.json")
    assert json.loads(manifest.read_text())["data_sha256"] == sha256[0]


def test_pieces_of_different_lengths_are_trained_on_by_the_schedule_of_mlperf_s_bert(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    folder, task = tmp_path / "text", tmp_path / "mine.toml"
    folder.mkdir()
    words = [word for word in WORDS if not word.startswith("##")] * 3
    for name, pieces in (("train.txt", 900), ("valid.txt", 90)):
        write_lines(folder / name, [" ".join(words[: 3 + 7 * n % 30]) for n in range(pieces)])
    write_task(task, write_vocabulary(folder), len(WORDS), target=0.12)
    text = task.read_text()
    for old, new in {
        "first_epoch = 1\nevery_epochs = 1": "every_samples = 500",
        "train_samples = ": "filled = false\ntrain_samples = ",
        'name = "adamw"': 'name = "lamb"',
        "warmup_epochs = 0": "warmup_steps = 20\nstart_warmup_step = -5",
        "decay_epochs = 20": 'decay_steps = 400\ndecay_from = "start"',
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    task.write_text(text)
    assert hybridperf("prepare", str(task), "--data-dir", str(folder)).code == 0

    answer = _run(hybridperf, task, folder, "dp=2,balance=tokens", tmp_path / "out")

    assert answer["findings"] == []
    (path,) = tmp_path.rglob("out/**/result_0.txt")
    log = read_log(path)
    stated = {key: log.value(key) for key in STEPS}
    assert stated == STEPS
    assert log.all("eval_accuracy")[0].metadata["samples_count"] == 480  # 15 batches of 32
    tracked = [entry.value for entry in log.all("tracked_stats") if isinstance(entry.value, dict)]
    (lengths, *_) = [each for each in tracked if "real_tokens" in each]
    assert 480 * 6 < lengths["real_tokens"] < 480 * 32
    assert 1 <= lengths["token_imbalance"] <= 1.02


#: what the log of a run by MLPerf's schedule states
STEPS = {
    "num_warmup_steps": 20,
    "opt_learning_rate_warmup_steps": 20,
    "start_warmup_step": -5,
    "opt_learning_rate_training_steps": 400,
}


@pytest.mark.exhaustive
def test_real_text_is_trained_on_under_a_pipeline(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    folder, entries = wikitext(tmp_path)
    task = tmp_path / "mine.toml"
    write_task(task, write_vocabulary(folder, entries), len(entries), target=0.03)
    assert hybridperf("prepare", str(task), "--data-dir", str(folder)).code == 0

    answer = _run(hybridperf, task, folder, "pp=2,schedule=1f1b,microbatches=2", tmp_path / "out")

    assert answer["findings"] == []


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    hybridperf: Callable[..., Finished], task: Path, folder: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The first file makes 130,000 bytes of tokens, and so does the second.
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        full = hybridperf("prepare", str(task), "--data-dir", str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert full.code == 4
    (sentence,) = full.err.splitlines()
    tokens = folder / "hybridperf_tokens"
    assert f"expected readable text, and disk space for tokens in {tokens}, found" in sentence
    assert sentence.endswith("correct that and repeat the command, which resumes.")
    assert json.loads((tokens / "record.json").read_text())["files_done"] == 1
    assert hybridperf("prepare", str(task), "--data-dir", str(folder)).code == 0


def test_a_task_whose_data_comes_with_a_package_needs_nothing(
    hybridperf: Callable[..., Finished],
) -> None:
    done = hybridperf("prepare", "resnet/laptop")

    assert done.code == 0
    assert done.out.startswith("resnet/laptop: already prepared; SHA")


def test_the_doctor_says_what_a_folder_of_text_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hybridperf: Callable[..., Finished]
) -> None:
    def lacks(name: str) -> str:
        found = {each["name"]: each for each in json.loads(hybridperf("doctor", "--json").out)}
        diagnosis = found[f"data of {name}"]
        assert diagnosis["status"] == "optional"
        return f"{diagnosis['detail']} -> {diagnosis['remedy']}"

    assert "needs a folder with WikiText-103" in lacks("bert/workstation")
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert lacks("bert_large/cluster").endswith(
        f"needs a vocabulary in {folder}/vocab.txt, found none -> "
        "Put the vocabulary of bert-base-uncased there."
    )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokens", "7", "data.text.tokens from 8 to 65536"),
        ("masked", "30", "data.text.masked from 1 to 28"),
        ("vocabulary", "70000", "data.text.vocabulary from 1 to 65536"),
        ("vocabulary_sha256", "1", "a value of type str at 'data.text.vocabulary_sha256'"),
    ],
)
def test_numbers_that_no_sample_can_have_are_refused(
    task: Path, hybridperf: Callable[..., Finished], key: str, value: str, says: str
) -> None:
    task.write_text(re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", task.read_text()))

    done = hybridperf("prepare", str(task))

    assert done.code == 2
    assert says in done.sentence


def test_a_model_of_other_samples_than_its_data_s_is_refused(
    task: Path, hybridperf: Callable[..., Finished]
) -> None:
    task.write_text(task.read_text().replace("masked = 4", "masked = 5", 1))

    done = hybridperf("run", str(task))

    assert done.code == 2
    assert "expected model.masked = data.text.masked, found 5" in done.sentence


def test_plain_text_comes_before_a_saved_set(
    hybridperf: Callable[..., Finished], task: Path, folder: Path
) -> None:
    write_lines(folder / "train.txt", ["the ship"])

    done = hybridperf("prepare", str(task), "--data-dir", str(folder))

    assert done.code == 4  # one line is not enough
    assert "train samples" in done.sentence
