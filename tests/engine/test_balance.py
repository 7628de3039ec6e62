"""Samples of different lengths are shared among replicas, each once, by their tokens."""

from __future__ import annotations

import dataclasses
import itertools
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import load
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.input import SampleLengths, balance_tokens
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.trainer import Trainer
from tests.engine.families import FAMILIES, SEED
from tests.engine.ranks import run_ranks
from tests.engine.worlds import mesh_of, whole
from tests.texts import wikitext_pieces

PAGE = Path(__file__).parents[2] / "docs/tasks.md"
STEPS = 5
BATCH = 80


@given(
    replicas=st.sampled_from([1, 2, 3, 4]),
    lengths=st.lists(st.integers(5, 128), min_size=12, max_size=12),
)
def test_every_replica_has_as_many_samples_in_the_order_of_the_batch(
    replicas: int, lengths: list[int]
) -> None:
    order = balance_tokens(np.array(lengths), replicas)

    assert sorted(order.tolist()) == list(range(12)), "no sample is lost or read twice"
    parts = order.reshape(replicas, -1)
    assert (np.diff(parts, axis=1) > 0).all()
    tokens = np.array(lengths)[parts].sum(axis=1)
    assert tokens.max() - tokens.min() <= max(lengths) - min(lengths)


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_have_like_many_tokens_of_wikitext_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    data, shares = wikitext_pieces(tmp_path, monkeypatch), {}
    task = FAMILIES["bert_lengths"].task()
    training = dataclasses.replace(task.training, global_batch_size=BATCH)
    task = dataclasses.replace(task, data=data, training=training)
    samples = load(data).train

    for balance in ("none", "tokens"):
        plan = ParallelPlan.parse(f"dp={replicas},balance={balance}")
        lengths, seen = SampleLengths(plan), list[int]()
        blocks = TrainingData(samples, task, SEED, Block(1, 2), on_batch=lambda: None)
        for batch in blocks.batches():
            shared = lengths.share(blocks, batch)
            assert sorted(shared.indices) == sorted(batch.indices)
            assert (np.diff(shared.epochs.reshape(replicas, -1), axis=1) >= 0).all()
            seen += shared.indices.tolist()
        assert np.bincount(seen).tolist() == [2] * task.data.train_samples
        shares[balance] = np.array(lengths._shares)

    imbalance = {name: (each.max(axis=1) / each.mean(axis=1)) for name, each in shares.items()}
    assert imbalance["tokens"].max() <= 1.02
    assert imbalance["none"].mean() > 1.02, "else there is nothing to balance"
    assert np.array_equal(*(each.sum(axis=1) for each in shares.values()))
    means = [f"{imbalance['none'].mean():.2f}", f"{imbalance['tokens'].mean():.4f}"]
    assert f"from {' to '.join(means)} on {replicas} replicas" in PAGE.read_text(encoding="utf-8")


def train_balanced(folder: Path, ranks: int) -> None:
    """Train five steps with and without balance, in fp32 and fp64, and save what came of it."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    with join_ranks(ParallelPlan(dp=ranks)) as device:
        for balance, dtype in itertools.product(BALANCES, DTYPES):
            plan = ParallelPlan.parse(f"dp={ranks},balance={balance}")
            family = dataclasses.replace(FAMILIES["bert_lengths"], dtype=dtype, reads_ahead=False)
            block = Block(1, STEPS * family.batch, "samples")
            data = TrainingData(
                family.splits().train, family.task(), SEED, block, on_batch=lambda: None
            )
            with closing(
                Trainer(family.chain(), family.task(), plan, mesh_of(plan, device), SEED)
            ) as trainer:
                gradients = found.setdefault(f"{balance} {dtype} gradients", {})

                def keep(*_: object, of: Trainer = trainer, into: Any = gradients) -> None:
                    for name, parameter in of._stage.named_parameters():
                        if parameter.grad is not None:
                            into.setdefault(name, whole(parameter.grad))  # of the first step

                trainer._update.optimizer.register_step_pre_hook(keep)
                trainer.train(data)
                weights = {name: value.clone() for name, value in trainer.weights().items()}
                found[f"{balance} {dtype} weights"] = weights
    torch.save(found, folder / f"rank_{os.environ['RANK']}.pt")


BALANCES = ("none", "tokens")
DTYPES = (torch.float32, torch.float64)


@pytest.mark.parametrize("ranks", [2, 4])
def test_balanced_ranks_compute_what_others_do_on_the_same_batches(
    tmp_path: Path, ranks: int
) -> None:
    run_ranks(ranks, train_balanced, tmp_path, ranks, output=tmp_path / "printed.txt")

    found = torch.load(tmp_path / "rank_0.pt", weights_only=True)
    for dtype, kind in itertools.product(DTYPES, ("gradients", "weights")):
        bound = 1e-6 if dtype == torch.float32 else 1e-11
        plain, balanced = (found[f"{balance} {dtype} {kind}"] for balance in BALANCES)
        norms = [value.norm().item() for value in plain.values()]
        least = sum(norm**2 for norm in norms) ** 0.5 / 1000
        for (name, value), norm in zip(plain.items(), norms, strict=True):
            error = (balanced[name] - value).norm().item() / max(norm, least)
            assert error <= bound, f"{dtype} {kind} of {name}: {error:.1e}"
        assert any(not torch.equal(balanced[name], value) for name, value in plain.items())
