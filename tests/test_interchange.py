"""Weights leave a task and enter it: files, their formats, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridperf.errors import UserError
from hybridperf.run.timed_run import unshared
from hybridperf.tasks.registry import find_task, read_task, task_path
from hybridperf_reference.bert.chain import bert_chain
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.checkpoint import TrainingProgress, save_checkpoint
from hybridperf_reference.interchange import library_model, load_weights, main
from hybridperf_reference.models import chain_of
from tests.families import run

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.models import Build

SMALL = {"hidden = 512": "hidden = 16", "layers = 4": "layers = 1", "inner = 2048": "inner = 32"}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """The file of a task with a small BERT whose decoder is not the word embedding."""
    text = task_path("bert/workstation").read_text()
    for old, new in SMALL.items():
        assert text.count(old) >= 1
        text = text.replace(old, new, 1)
    text = re.sub(r"(?m)^tied = true.*$", "", text)
    path = tmp_path / "task.toml"
    path.write_text(text)
    return path


def tied(task: Task) -> Chain:
    """Build a BERT whose decoder is the word embedding."""
    chain = bert_chain(task)
    words = chain.units[0].module.get_parameter("words.weight")
    chain.units[-1].module.get_submodule("decoder").weight = words
    return dataclasses.replace(chain)  # which finds what its units share


def export(
    monkeypatch: pytest.MonkeyPatch,
    task: Path,
    form: str,
    out: Path,
    *sources: Path,
    build: Build | None = None,
) -> dict[str, Any]:
    """Run the module as the harness does, and return its answer."""
    out.mkdir()
    answer = out.with_suffix(".json")
    arguments = ["interchange", str(task), str(answer), form, str(out), *map(str, sources)]
    monkeypatch.setattr(sys, "argv", arguments)
    main(build)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def weights_of(chain: Chain) -> dict[str, Tensor]:
    """Return copies of the chain's weights."""
    return {name: value.clone() for name, value in Stage(chain.units).state_dict().items()}


def parts_of(chain: Chain, folder: Path) -> list[Path]:
    """Save the chain's weights as two ranks do."""
    weights = weights_of(chain)
    paths = [folder / f"weights_0_part_{part}.safetensors" for part in range(2)]
    for part, path in enumerate(paths):
        save_file(dict(list(weights.items())[part::2]), path)
    return paths


@pytest.mark.parametrize("build", [bert_chain, tied])
def test_transformers_reads_an_export_and_predicts_the_same(
    monkeypatch: pytest.MonkeyPatch, bert: Path, tmp_path: Path, build: Build
) -> None:
    transformers = pytest.importorskip("transformers")
    chain = chain_of(read_task(bert), 3, build)
    answer = export(
        monkeypatch,
        bert,
        "transformers",
        tmp_path / "out",
        *parts_of(chain, tmp_path),
        build=build,
    )

    theirs, loaded = getattr(transformers, answer["python"].rpartition(".")[2]).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )

    assert not any(loaded.values())
    assert theirs.config.tie_word_embeddings is (build is tied)
    assert theirs.config.vocabulary_sha256 == read_task(bert).data.text.vocabulary_sha256  # type: ignore[union-attr]  # a task of text
    embedding = theirs.get_input_embeddings().weight
    assert (theirs.get_output_embeddings().weight is embedding) is (build is tied)
    inputs, _ = chain.example(2)
    words, _, sentences = inputs.unbind(dim=2)
    with torch.no_grad():
        expected = theirs.eval()(words, token_type_ids=sentences)
    masked = expected.prediction_logits[:, 1:20]
    assert torch.allclose(run(chain, inputs)[:, 1:], masked, rtol=1e-5, atol=1e-5)


def test_an_export_is_loaded_again_and_is_the_same(
    monkeypatch: pytest.MonkeyPatch, bert: Path, tmp_path: Path
) -> None:
    task = read_task(bert)
    chain = chain_of(task, seed=3)
    parts = parts_of(chain, tmp_path)
    for form in ("transformers", "safetensors"):
        export(monkeypatch, bert, form, tmp_path / form, *parts)
        for stated in (form, None):
            again = chain_of(task, seed=4)
            load_weights(again, task, tmp_path / form / "model.safetensors", stated)
            for name, value in weights_of(chain).items():
                assert torch.equal(weights_of(again)[name], value), name


def test_a_checkpoint_of_any_plan_is_exported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = find_task("resnet/laptop")
    chain = chain_of(task, seed=3)
    stage = Stage(chain.units)
    progress = TrainingProgress("dp=1", 3, 0, 0, 1.0, 0)
    optimizer = torch.optim.SGD(stage.parameters(), 0.1, momentum=0.9)
    save_checkpoint(tmp_path / "checkpoint", stage, optimizer, progress)

    path = task_path("resnet/laptop")
    answer = export(monkeypatch, path, "torchvision", tmp_path / "out", tmp_path / "checkpoint")

    assert answer["python"] == ""  # torchvision has no small stem
    found = load_file(tmp_path / "out/model.safetensors")
    assert len(found) == answer["tensors"] == len(stage.state_dict())
    assert torch.equal(found["conv1.weight"], stage.state_dict()["stem.conv.weight"])


@pytest.mark.parametrize("name", ["resnet50/cluster", "vgg/cluster", "vit/cluster"])
def test_the_expression_that_is_printed_builds_the_model(name: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    task = find_task(name)
    library = library_model(task, "torchvision")
    with torch.device("meta"):
        theirs = eval(library.python, {"torchvision": torchvision})
        own = weights_of(chain_of(task, seed=0))

    exported = library.to_library(own)

    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in exported.items()} == shapes


def _refusal(task: Task, path: Path, form: str | None = None, build: Build | None = None) -> str:
    with pytest.raises(UserError) as refusal:
        load_weights(chain_of(task, 0, build), task, path, form)
    return str(refusal.value)


def test_a_padded_vocabulary_is_refused_by_name(bert: Path, tmp_path: Path) -> None:
    task = read_task(bert)
    model = task.model | {"vocabulary": 30528}
    padded = chain_of(dataclasses.replace(task, model=model), seed=0)
    library = library_model(task, "transformers")
    path = tmp_path / "bert.safetensors"
    tensors = library.to_library(weights_of(padded))
    save_file(unshared(tensors), path)

    assert _refusal(task, path) == (
        "bert.safetensors: expected embeddings.words.weight of shape [30522, 16], found "
        "[30528, 16]; NVIDIA's convert_tf_checkpoint.py pads the vocabulary: keep the first 30522 "
        "rows, or convert with transformers 4."
    )


def test_a_decoder_that_is_left_out_is_the_word_embedding(bert: Path, tmp_path: Path) -> None:
    """As `save_pretrained` of transformers leaves it out."""
    task = read_task(bert)
    tensors = library_model(task, "transformers").to_library(weights_of(chain_of(task, seed=3)))
    del tensors["cls.predictions.decoder.weight"]
    del tensors["cls.predictions.decoder.bias"]
    tensors["bert.embeddings.position_ids"] = torch.arange(128)
    path = tmp_path / "bert.safetensors"
    save_file(tensors, path)
    chain = chain_of(task, seed=4)

    load_weights(chain, task, path, "transformers")

    weights = weights_of(chain)
    assert torch.equal(weights["head.decoder.weight"], weights["embeddings.words.weight"])
    assert torch.equal(weights["head.decoder.bias"], tensors["cls.predictions.bias"])


@pytest.mark.parametrize("form", ["safetensors", "transformers"])
def test_a_tied_model_refuses_weights_that_are_not(bert: Path, tmp_path: Path, form: str) -> None:
    task = read_task(bert)
    weights = weights_of(chain_of(task, seed=0))
    if form == "transformers":
        weights = library_model(task, form).to_library(weights)
    path = tmp_path / "bert.safetensors"
    save_file(unshared(weights), path)

    said = _refusal(task, path, build=tied)

    assert "expected head.decoder.weight equal to embeddings.words.weight" in said


@pytest.mark.parametrize(
    ("change", "form", "words"),
    [
        ({"fc.weight": torch.zeros(3, 512)}, None, "head.fc.weight of shape [10, 512], found [3,"),
        ({"fc.weight": None}, None, "expected the tensor fc.weight, found none of this name"),
        ({"fc.more": torch.zeros(3)}, None, "only tensors of the task's model, found fc.more"),
        ({}, "safetensors", "expected the tensor head.fc.bias, found none of this name"),
        ({}, "transformers", "a format of resnet: torchvision or safetensors, found transformers"),
    ],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, change: dict[str, Tensor | None], form: str | None, words: str
) -> None:
    task = find_task("resnet/laptop")
    weights = library_model(task, "torchvision").to_library(weights_of(chain_of(task, seed=0)))
    path = tmp_path / "resnet.safetensors"
    changed = {name: value for name, value in (weights | change).items() if value is not None}
    save_file(unshared(changed), path)

    assert words in _refusal(task, path, form)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "resnet.pt"
    torch.save({"a": torch.zeros(3)}, path)

    assert _refusal(find_task("resnet/laptop"), path).startswith(
        "resnet.pt: expected a file in the format safetensors, found "
    )


def test_a_bert_with_pre_norm_is_in_no_library() -> None:
    with pytest.raises(UserError, match="norm_first = true; export the weights with --format"):
        library_model(find_task("bert/laptop"), "transformers")
