"""Bounds on the names and numbers of a task."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.tasks.task import Task

__all__ = ["out_of_bounds"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,30}/[a-z0-9][a-z0-9_.-]{0,30}")
_MOST_EPOCHS: Final = 100_000
_MOST_MIXUP: Final = 100  #: above, Beta(mixup, mixup) gives shares near one half only
_LEAST_TOKENS: Final = 8  #: of a sample of text, so that each of its segments is not empty
_MOST_TOKENS: Final = 2**16  #: a token's number and its position fit into two bytes each


def out_of_bounds(task: Task) -> Iterator[tuple[str, str]]:
    """Yield (expected, found) for each name or number of ``task`` that is out of bounds."""
    if not _NAME.fullmatch(task.name):
        expected = "name = family/tier, each of lower-case letters, digits, '.', '_' and '-'"
        yield expected, repr(task.name)
    if not task.units or len(set(task.units)) < len(task.units):
        yield "units with a name each, no two the same", f"{list(task.units)!r:.80}"
    if task.training.mixup and type(classes := task.model.get("classes")) is not int:
        yield "training.mixup = 0 where [model] states no whole number of classes", repr(classes)
    numbers: dict[str, tuple[float, float, float]] = {
        "version": (task.version, 1, math.inf),
        "data.train_samples": (task.data.train_samples, 1, math.inf),
        "data.eval_samples": (task.data.eval_samples, 1, math.inf),
        "quality.target": (task.quality.target, 0, 1),
        "quality.rescoring_tolerance": (task.quality.rescoring_tolerance, 0, 1),
        "evaluation.first_epoch": (task.evaluation.first_epoch, 1, task.limits.epochs),
        "evaluation.every_epochs": (task.evaluation.every_epochs, 1, math.inf),
        "limits.epochs": (task.limits.epochs, 1, _MOST_EPOCHS),
        "runs.count": (task.runs.count, 1, math.inf),
        "runs.most_missed": (task.runs.most_missed, 0, task.runs.count),
        "training.global_batch_size": (
            task.training.global_batch_size,
            1,
            task.data.train_samples,
        ),
        "training.mixup": (task.training.mixup, 0, _MOST_MIXUP),
        "optimizer.decay_epochs": (task.optimizer.decay_epochs, 1, math.inf),
        "optimizer.warmup_epochs": (task.optimizer.warmup_epochs, 0, math.inf),
    }
    if text := task.data.text:
        numbers |= {
            "data.text.tokens": (text.tokens, _LEAST_TOKENS, _MOST_TOKENS),
            "data.text.masked": (text.masked, 1, text.tokens - _LEAST_TOKENS // 2),
            "data.text.vocabulary": (text.vocabulary, 1, _MOST_TOKENS),
        }
        for key in ("tokens", "masked", "vocabulary"):
            if task.model.get(key, getattr(text, key)) != getattr(text, key):
                yield f"model.{key} = data.text.{key}", f"{task.model[key]!r:.80}"
    for key, (value, least, most) in numbers.items():
        if not least <= value <= most:
            bound = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            yield f"{key} {bound}", str(value)
