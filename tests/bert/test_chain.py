from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hybridperf.tasks.registry import find_task
from hybridperf_reference.models import chain_of
from tests.families import (
    assert_names_and_shapes,
    chain_that_gave_weights_to,
    chain_with_weights_of,
    run,
    size_of,
    task_of,
)

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task
    from tests.families import Exchange


def _full(hidden: int, layers: int, heads: int, **numbers: object) -> Task:
    model: dict[str, object] = {
        "vocabulary": 30522,
        "tokens": 512,
        "masked": 76,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "inner": 4 * hidden,
        "dropout": 0.1,
        "sentences": True,
        "norm_first": False,
        "initial_std": 0.02,
        "embedding_std": 0.02,
    }
    names = [f"layers.{index}" for index in range(layers)]
    return task_of("bert/laptop", model | numbers, ("embeddings", *names, "head"))


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "published"),
    [(768, 12, 12, 110_106_428), (1024, 24, 16, 336_226_108)],
    ids=["BERT-base", "BERT-Large"],
)
@pytest.mark.parametrize("tied", [True, False])
def test_sizes_are_the_published_ones_and_those_of_a_decoder_that_is_not_tied(
    hidden: int, layers: int, heads: int, published: int, tied: bool
) -> None:
    parameters, gflop = size_of(_full(hidden, layers, heads, tied=tied))

    decoder = 0 if tied else 30522 * hidden
    assert parameters == round((published + decoder) / 1e6, 3)
    # By hand, a multiply-add being two operations: 24 h^2 in a layer's six linears and 4 t h in
    # its attention for each token; 2 h^2 and 2 h V for each masked one; the sentences' relation.
    layer = 512 * (24 * hidden**2 + 4 * 512 * hidden)
    head = 76 * (2 * hidden**2 + 2 * hidden * 30522) + 2 * hidden**2 + 4 * hidden
    assert gflop == round((layers * layer + head) / 1e9, 3)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bert/workstation", (4, 512, 8, 2048, 128)),
        ("bert_large/cluster", (24, 1024, 16, 4096, 512)),
    ],
)
def test_models_of_the_tasks_have_the_parameters_of_transformers(
    name: str, config: tuple[int, int, int, int, int]
) -> None:
    models = pytest.importorskip("transformers.models.bert.modeling_bert")
    layers, hidden, heads, inner, tokens = config
    with torch.device("meta"):
        theirs = models.BertForPreTraining(
            models.BertConfig(
                vocab_size=30522,
                num_hidden_layers=layers,
                hidden_size=hidden,
                num_attention_heads=heads,
                intermediate_size=inner,
                max_position_embeddings=tokens,
            )
        )

    task = find_task(name)
    assert task.parallel.tensor_sizes == (heads, inner)
    assert task.parallel.tokens == tokens
    assert task.parallel.tied
    assert task.model["masked"] == round(0.15 * (tokens - 3))
    assert not task.parallel.batch_norm
    assert_names_and_shapes(task, "transformers", theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("exchange", [chain_with_weights_of, chain_that_gave_weights_to])
def test_outputs_are_those_of_transformers(exchange: Exchange, tied: bool) -> None:
    """With the same weights, the chain computes what transformers' model does, in another order."""
    models = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = models.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=12,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    theirs = models.BertForPreTraining(config).eval()
    task = _full(16, 2, 4, vocabulary=50, tokens=12, masked=3, tied=tied)
    chain = exchange(task, "transformers", theirs)
    words = torch.randint(1, 50, (2, 12))
    sentences = (torch.arange(12) > 6).long().expand(2, -1)
    order = torch.tensor([0, 7, 2, 9, 1, 3, 4, 5, 6, 8, 10, 11])  # 7, 2 and 9 are to be predicted

    with torch.no_grad():
        expected = theirs(words, token_type_ids=sentences)
    inputs = torch.stack([words, torch.arange(12).expand(2, -1), sentences], dim=2)[:, order]
    outputs = run(chain, inputs)

    predicted = expected.prediction_logits[:, order[1:4]]
    assert torch.allclose(outputs[:, 1:], predicted, rtol=1e-5, atol=1e-5)
    relation = expected.seq_relationship_logits
    assert torch.allclose(outputs[:, 0, :2], relation, rtol=1e-5, atol=1e-5)


def test_pre_norm_and_post_norm_differ_with_equal_shapes() -> None:
    numbers = {"vocabulary": 50, "tokens": 12, "masked": 3, "sentences": False, "dropout": 0.0}
    first, last = (
        chain_of(_full(16, 2, 4, norm_first=choice, **numbers), seed=0) for choice in (True, False)
    )
    inputs, targets = first.example(2)

    outputs = run(first, inputs)

    assert outputs.shape == run(last, inputs).shape == (*targets.shape, 50)
    assert not torch.allclose(outputs, run(last, inputs))
