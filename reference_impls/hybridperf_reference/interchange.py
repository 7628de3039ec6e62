"""Weights of other libraries: the names of tensors there and here, one table a family.

``python -m hybridperf_reference.interchange TASK ANSWER FORMAT FOLDER SOURCE ...`` writes the
weights of a task's model to ``FOLDER`` in ``FORMAT``. ``SOURCE`` is a checkpoint's folder, or the
safetensors files that together hold the weights. Facts about the export are written to ``ANSWER``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import torch

from hybridperf.errors import UserError
from hybridperf.run.timed_run import unshared
from hybridperf.tasks.registry import read_task
from hybridperf.tasks.schema import build as build_table
from hybridperf.tasks.task import WeightFormat
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.checkpoint import load_model
from hybridperf_reference.models import chain_of, family_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.models import Build

__all__ = ["LibraryModel", "TensorName", "library_model", "load_weights", "main"]

_MODEL_FILE: Final = "model.safetensors"  #: as `from_pretrained` of transformers names it
_CONFIG_FILE: Final = "config.json"
_THIRDS: Final = 3
_PADDING: Final = 8  #: NVIDIA's converter rounds the vocabulary up to a multiple


@dataclass(frozen=True, slots=True)
class TensorName:
    """The name of a tensor, or of a module for all of its tensors, here and in a library.

    No tensor of these families is transposed between the two.
    """

    own: str
    library: str
    third: int | None = None  #: which third of the library's rows is the tensor; None: all rows


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A library's model of a task: the names of its tensors, and how it is built."""

    names: tuple[TensorName, ...]
    python: str  #: expression of the model, or its class; "" if the library builds no such sizes
    copies: Mapping[str, str] = field(default_factory=dict)
    #: tensors of the library that repeat another one: copy -> original
    config: Mapping[str, object] = field(default_factory=dict)  #: of transformers; else empty

    def name_of(self, own: str) -> tuple[str, int | None]:
        """Return the library's name of the tensor ``own``, and which third of its rows that is.

        Raises:
            UserError: exit status 2 if no row of the table has the tensor or a module around it.
        """
        rows = {row.own: row for row in self.names}
        module, tensor = own, ""
        while module and module not in rows:
            module, _, last = module.rpartition(".")
            tensor = f".{last}{tensor}"
        if (row := rows.get(module)) is None:
            raise UserError.of(
                "interchange.names",
                "tensors of the suite's model of this family",
                f"{own:.80}",
                "use --format safetensors",
            )
        return f"{row.library}{tensor}", row.third

    def to_library(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``weights`` by the library's names; a repeated tensor has both of its names."""
        tensors: dict[str, Tensor] = {}
        parts: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        for own, value in weights.items():
            name, third = self.name_of(own)
            if third is None:
                tensors[name] = value
            else:
                parts[name][third] = value
        for name, thirds in parts.items():
            tensors[name] = torch.cat([thirds[third] for third in range(_THIRDS)])
        for copy, original in self.copies.items():
            tensors.setdefault(copy, tensors[original])
        return tensors

    def to_own(
        self, tensors: Mapping[str, Tensor], names: Iterable[str], path: str
    ) -> dict[str, Tensor]:
        """Return the weights ``names`` from the library's ``tensors``, read from the file ``path``.

        A file may hold a repeated tensor once.

        Raises:
            UserError: exit status 2 if a tensor is missing, or belongs to another model.
        """
        held = dict(tensors)
        for copy, original in self.copies.items():
            for absent, present in ((copy, original), (original, copy)):
                if present in held:
                    held.setdefault(absent, held[present])
        places = {own: self.name_of(own) for own in names}
        _require_names({name for name, _ in places.values()}, held.keys() - _UNUSED, self, path)
        return {
            own: held[name] if third is None else held[name].tensor_split(_THIRDS)[third]
            for own, (name, third) in places.items()
        }


def _rows(table: Sequence[tuple[str, str]], own: str = "", library: str = "") -> list[TensorName]:
    """Return the rows of ``table``, with prefixes before the names of both columns."""
    return [TensorName(f"{own}{ours}", f"{library}{theirs}") for ours, theirs in table]


_RESNET: Final = (("stem.conv", "conv1"), ("stem.bn", "bn1"), ("head.fc", "fc"))
_VGG_CLASSIFIER: Final = (
    ("fc1.linear", "classifier.0"),
    ("fc2.linear", "classifier.3"),
    ("fc3.linear", "classifier.6"),
)
_VIT: Final = (
    ("embeddings.class_token", "class_token"),
    ("embeddings.patches", "conv_proj"),
    ("embeddings.positions", "encoder.pos_embedding"),
    ("head.norm", "encoder.ln"),
    ("head.fc", "heads.head"),
)
_VIT_LAYER: Final = (
    ("attention_norm", "ln_1"),
    ("attention.out", "self_attention.out_proj"),
    ("mlp_norm", "ln_2"),
    ("mlp.inner", "mlp.0"),
    ("mlp.outer", "mlp.3"),
)
_BERT: Final = (
    ("embeddings.words", "bert.embeddings.word_embeddings"),
    ("embeddings.places", "bert.embeddings.position_embeddings"),
    ("embeddings.sentences", "bert.embeddings.token_type_embeddings"),
    ("embeddings.norm", "bert.embeddings.LayerNorm"),
    ("head.pooler", "bert.pooler.dense"),
    ("head.transform", "cls.predictions.transform.dense"),
    ("head.norm", "cls.predictions.transform.LayerNorm"),
    ("head.decoder", "cls.predictions.decoder"),
    ("head.relation", "cls.seq_relationship"),
)
_BERT_LAYER: Final = (
    ("attention.query", "attention.self.query"),
    ("attention.key", "attention.self.key"),
    ("attention.value", "attention.self.value"),
    ("attention.out", "attention.output.dense"),
    ("attention_norm", "attention.output.LayerNorm"),
    ("mlp.inner", "intermediate.dense"),
    ("mlp.outer", "output.dense"),
    ("mlp_norm", "output.LayerNorm"),
)
_BERT_COPIES: Final = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.bias": "cls.predictions.decoder.bias",
}
_UNUSED: Final = {"bert.embeddings.position_ids"}  #: tensors of older files that are no weights


def _resnet(task: Task) -> LibraryModel:
    from hybridperf_reference.resnet.chain import ResnetShape  # lazily, as in `chain_of`

    shape = build_table(ResnetShape, task.model, path=task.name, at="model")
    layers = [(name, name) for name in (f"layer{n + 1}" for n in range(len(shape.depths)))]
    block, expansion = {"basic": ("BasicBlock", 1), "bottleneck": ("Bottleneck", 4)}[shape.block]
    sizes = (shape.stem, shape.channels, shape.width, len(shape.depths), shape.expansion)
    arguments = f"torchvision.models.resnet.{block}, {list(shape.depths)}"
    python = f"torchvision.models.ResNet({arguments}, num_classes={shape.classes})"
    return LibraryModel(
        names=(*_rows(_RESNET), *_rows(layers)),
        python=python if sizes == ("large", 3, 64, 4, expansion) else "",
    )


def _vgg(task: Task) -> LibraryModel:
    from hybridperf_reference.vgg.chain import VggShape

    shape = build_table(VggShape, task.model, path=task.name, at="model")
    features: list[tuple[str, str]] = []
    layers: list[int | str] = []
    place = 0  # in the library's list of convolutions, activations and poolings
    for block, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True), start=1):
        for index in range(depth):
            features.append((f"conv{block}.{index}.conv", f"features.{place}"))
            place += 2
        layers += [width] * depth + ["M"]
        place += 1
    sizes = (shape.channels, shape.widths[-1], shape.pooled_px, shape.hidden)
    convolutions = f"torchvision.models.vgg.make_layers({layers})"
    python = f"torchvision.models.VGG({convolutions}, num_classes={shape.classes})"
    return LibraryModel(
        names=(*_rows(features), *_rows(_VGG_CLASSIFIER)),
        python=python if sizes == (3, 512, 7, 4096) else "",
    )


def _vit(task: Task) -> LibraryModel:
    from hybridperf_reference.vit.chain import VitShape

    shape = build_table(VitShape, task.model, path=task.name, at="model")
    names = _rows(_VIT)
    for layer in range(shape.layers):
        own, library = f"layers.{layer}.", f"encoder.layers.encoder_layer_{layer}."
        names += _rows(_VIT_LAYER, own, library)
        for third, part in enumerate(("query", "key", "value")):
            names += [
                TensorName(
                    f"{own}attention.{part}.{kind}",
                    f"{library}self_attention.in_proj_{kind}",
                    third,
                )
                for kind in ("weight", "bias")
            ]
    sizes = (shape.image_px, shape.patch_px, shape.layers, shape.heads, shape.hidden, shape.inner)
    arguments = ", ".join(map(str, sizes))
    python = f"torchvision.models.VisionTransformer({arguments}, num_classes={shape.classes})"
    return LibraryModel(names=tuple(names), python=python if shape.channels == 3 else "")


def _bert(task: Task) -> LibraryModel:
    from hybridperf_reference.bert.chain import EPSILON, BertShape

    shape = build_table(BertShape, task.model, path=task.name, at="model")
    if shape.norm_first:
        raise UserError.of(
            "interchange.model",
            "norm_first = false, as in transformers' BERT",
            "norm_first = true",
            "export the weights with --format safetensors",
            path=task.name,
        )
    names = _rows(_BERT)
    for layer in range(shape.layers):
        names += _rows(_BERT_LAYER, f"layers.{layer}.", f"bert.encoder.layer.{layer}.")
    architecture = "BertForPreTraining" if shape.sentences else "BertForMaskedLM"
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.tokens,
        "type_vocab_size": 2,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "hidden_act": "gelu",
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
        "layer_norm_eps": EPSILON,
        "initializer_range": shape.initial_std,
    }
    return LibraryModel(tuple(names), f"transformers.{architecture}", _BERT_COPIES, config)


#: (format, family) -> the library's model of a task of the family
_LIBRARIES: Final[Mapping[tuple[str, str], Callable[[Task], LibraryModel]]] = {
    ("torchvision", "resnet"): _resnet,
    ("torchvision", "vgg"): _vgg,
    ("torchvision", "vit"): _vit,
    ("transformers", "bert"): _bert,
}


def library_model(task: Task, form: str) -> LibraryModel:
    """Return the model of ``task`` in the library that the format ``form`` is named after.

    Raises:
        UserError: exit status 2 if the library has no such model.
    """
    family = family_of(task)
    if (model := _LIBRARIES.get((form, family))) is None:
        formats = [each for each, of in _LIBRARIES if of == family]
        raise UserError.of(
            "interchange.format",
            f"a format of {family}: {' or '.join([*formats, 'safetensors'])}",
            form,
            "name one of these",
            path=task.name,
        )
    return model(task)


def load_weights(chain: Chain, task: Task, path: Path, form: str | None) -> None:
    """Load the weights of the file ``path`` into ``chain``, before the chain is parallelized.

    So every plan begins from the same weights. Without ``form`` the names of the file's tensors
    tell its format.

    Raises:
        UserError: exit status 2, naming the first tensor that does not fit the task's model.
    """
    stage = Stage(chain.units)
    own, found = stage.state_dict(), _read_tensors([path])
    form = form or _likely_format(found.keys(), own.keys(), task)
    if form == "safetensors":
        _require_ties(stage, found, str, path.name)
        _require_names(own.keys(), found.keys(), None, path.name)
    else:
        library = library_model(task, form)
        _require_ties(stage, found, lambda name: library.name_of(name)[0], path.name)
        found = library.to_own(found, own, path.name)
    _require_shapes(found, own, task, path.name)
    stage.load_state_dict(found)


def _read_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Read the tensors of the safetensors files ``paths`` by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise UserError.of(
                "interchange.file",
                "a file in the format safetensors",
                str(error),
                "convert the weights to safetensors",
                path=path.name,
            ) from error
    return tensors


def _likely_format(found: Collection[str], own: Collection[str], task: Task) -> str:
    """Return the format in which the most tensors ``found`` have a name of the task's model."""
    shared = {"safetensors": len({*own}.intersection(found))}
    for form in get_args(WeightFormat):
        with contextlib.suppress(UserError):  # no format of this family
            library = library_model(task, form)
            shared[form] = len({library.name_of(name)[0] for name in own}.intersection(found))
    return max(shared, key=lambda form: shared[form])


def _require_names(
    wanted: Collection[str], found: Collection[str], library: LibraryModel | None, path: str
) -> None:
    missing = sorted({*wanted}.difference(found))
    extra = sorted({*found}.difference(wanted, library.copies if library else ()))
    if missing or extra:
        raise UserError.of(
            "interchange.names",
            f"the tensor {missing[0]}" if missing else "only tensors of the task's model",
            "none of this name" if missing else f"{extra[0]:.80}",
            "use weights of the task's model, in the format that is stated",
            path=path,
        )


def _require_shapes(
    found: Mapping[str, Tensor], own: Mapping[str, Tensor], task: Task, path: str
) -> None:
    for name, value in own.items():
        shape, instead = (list(each.shape) for each in (value, found[name]))
        if shape == instead:
            continue
        remedy = "use weights of a model of the task's sizes"
        rows = task.model.get("vocabulary")
        if shape[:1] == [rows] and instead == [-(-shape[0] // _PADDING) * _PADDING, *shape[1:]]:
            remedy = (
                "NVIDIA's convert_tf_checkpoint.py pads the vocabulary: "
                f"keep the first {rows} rows, or convert with transformers 4"
            )
        raise UserError.of(
            "interchange.shape", f"{name} of shape {shape}", f"{instead}", remedy, path=path
        )


def _require_ties(
    stage: nn.Module, found: Mapping[str, Tensor], name_of: Callable[[str], str], path: str
) -> None:
    """Refuse weights that differ where the model has one parameter under two names."""
    first: dict[int, str] = {}
    for name, parameter in stage.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        one, other = found.get(name_of(name)), found.get(name_of(owner))
        if one is not None and other is not None and not torch.equal(one, other):
            raise UserError.of(
                "interchange.tied",
                f"{name} equal to {owner}, since the model ties them",
                "other values",
                "use weights of a tied model, or a task whose model does not tie them",
                path=path,
            )


def main(build: Build | None = None) -> None:
    """Write the weights that the command line names, in a format that another library reads.

    ``build`` overrides the task's model family.
    """
    task_path, answer, form, target, *sources = sys.argv[1:]
    task, paths = read_task(Path(task_path)), list(map(Path, sources))
    with torch.device("cpu" if paths[0].is_dir() else "meta"):
        stage = Stage(chain_of(task, 0, build).units)
    weights = stage.state_dict()
    if paths[0].is_dir():
        load_model(paths[0], stage)
    else:
        found = _read_tensors(paths)
        _require_names(weights.keys(), found.keys(), None, paths[0].name)
        _require_shapes(found, weights, task, paths[0].name)
        weights = found
    python, count = _write(task, form, stage, weights, Path(target))
    Path(answer).write_text(json.dumps({"python": python, "tensors": count}))


def _write(
    task: Task, form: str, stage: nn.Module, weights: Mapping[str, Tensor], folder: Path
) -> tuple[str, int]:
    """Write ``weights`` into ``folder``; return how the library builds the model, and their count.

    ``config.json`` says whether the decoder is tied, as `from_pretrained` would tie it by default.
    """
    from safetensors.torch import save_file

    library = None if form == "safetensors" else library_model(task, form)
    tensors = library.to_library(weights) if library else weights
    facts = {"format": "pt", "task": task.name}
    if text := task.data.text:
        facts |= {"vocabulary": "vocab.txt", "vocabulary_sha256": text.vocabulary_sha256}
    save_file(unshared(tensors), folder / _MODEL_FILE, metadata=facts)
    if library and library.config:
        names = [name for name, _ in stage.named_parameters(remove_duplicate=False)]
        tied = len(names) > len(list(stage.parameters()))
        config = {**library.config, **facts, "tie_word_embeddings": tied}
        del config["format"]
        (folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return (library.python if library else ""), len(tensors)


if __name__ == "__main__":
    main()
