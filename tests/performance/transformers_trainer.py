"""BERT as users of transformers train it: `BertForMaskedLM` by `Trainer`, an epoch at a time.

Its ordinary settings: fused AdamW, gradients clipped at norm 1; nothing is logged, saved or
evaluated. Its samples are masked beforehand, ours while the clock runs. It decodes all places, of
which the loss takes the masked ones; ours decodes no others.
"""

from __future__ import annotations

import tempfile
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.interchange import library_model
from hybridperf_reference.models import chain_of
from tests.performance.work import SEED

if TYPE_CHECKING:
    from hybridperf_reference.engine.chain import Chain
    from tests.performance.work import Work

__all__ = ["TransformersTrainer"]

_NOT_MASKED = -100  # what transformers leaves out of the loss


class TransformersTrainer:
    """Train in a thread of its own, which waits between epochs."""

    def __init__(self, work: Work, epochs: int) -> None:
        chain, facts = chain_of(work.task, SEED), work.task.optimizer
        model = _model(work, chain)
        self._losses: list[Tensor] = []
        model.register_forward_hook(lambda *call: self._losses.append(call[2].loss.detach()))
        settings = TrainingArguments(
            tempfile.mkdtemp(),  # where nothing is saved
            per_device_train_batch_size=work.task.training.global_batch_size,
            max_steps=round(epochs * work.task.steps_per_epoch),
            learning_rate=facts.lr,
            lr_scheduler_type=facts.schedule,
            adam_beta1=facts.beta1,
            adam_beta2=facts.beta2,
            adam_epsilon=facts.epsilon,
            weight_decay=facts.weight_decay,
            max_grad_norm=facts.clip_norm,
            train_sampling_strategy="sequential",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,  # there is nothing to copy to
        )
        self._turns = _Turns(round(work.task.steps_per_epoch))
        masked = _Masked(work, chain, epochs)
        trainer = Trainer(model, settings, train_dataset=masked, callbacks=[self._turns])
        self._thread = threading.Thread(target=trainer.train, daemon=True)

    def train_epoch(self, epoch: int) -> None:
        """Let the thread train through its next epoch."""
        if epoch == 1:
            self._thread.start()
        self._turns.take()

    def mean_loss(self) -> float:
        """Return the mean since the last call."""
        mean = torch.stack(self._losses).mean().item()
        self._losses.clear()
        return mean


class _Turns(TrainerCallback):
    """Halt the thread that trains, but for an epoch when it is asked to."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def take(self) -> None:
        """Wait until an epoch is trained."""
        self._go.release()
        self._done.acquire()

    def on_step_begin(self, *given: Any, **_: Any) -> None:
        _, state, _ = given
        if state.global_step == 0:
            self._go.acquire()

    def on_step_end(self, *given: Any, **_: Any) -> None:
        _, state, _ = given
        if state.global_step % self._steps == 0:
            self._done.release()
            self._go.acquire()


class _Masked(Dataset[dict[str, Tensor]]):
    """The samples of all epochs in the order of training, with the places that ours predicts."""

    def __init__(self, work: Work, chain: Chain, epochs: int) -> None:
        self._words, self._labels = list[Tensor](), list[Tensor]()
        for epoch in range(1, epochs + 1):
            for inputs, targets in work.batches(chain.objective, epoch):
                words, places, _ = inputs.unbind(dim=2)
                self._words += words.scatter(1, places, words).unbind()
                labels = torch.full_like(words, _NOT_MASKED)
                labels.scatter_(1, places[:, : targets.shape[1]], targets)
                self._labels += labels.unbind()

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input_ids": self._words[number], "labels": self._labels[number]}


def _model(work: Work, chain: Chain) -> BertForMaskedLM:
    """Return transformers' model, of the task's shape and with the chain's weights."""
    shape: dict[str, Any] = work.task.model
    config = BertConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        intermediate_size=shape["inner"],
        max_position_embeddings=shape["tokens"],
        hidden_dropout_prob=shape["dropout"],
        attention_probs_dropout_prob=shape["dropout"],
        tie_word_embeddings=False,
    )
    model = BertForMaskedLM(config)
    weights = library_model(work.task, "transformers").to_library(Stage(chain.units).state_dict())
    model.load_state_dict(weights)
    return model
