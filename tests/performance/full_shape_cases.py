"""The models that are measured at full size, and how much of each a device is given.

ResNet-50 and BERT-Large are those of their tasks; VGG-19 and ViT-B/32 are their families' tasks
with other numbers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["ACCELERATOR", "CASES", "PROCESSOR", "Case", "Limit", "Setting"]


@dataclass(frozen=True)
class Limit:
    """Products of two square matrices; the size that is fastest says what the device can do."""

    sides: tuple[int, ...]
    flops: float  #: of all products of one size, each time that they are measured


ACCELERATOR = Limit((4096, 8192, 16384), 2e13)
PROCESSOR = Limit((1024, 2048), 5e10)  # for one thread


@dataclass(frozen=True)
class Setting:
    """What is run on one kind of device."""

    plan: str
    batch: int
    steps: int  #: between two waits for the device
    rounds: int  #: of so many steps, each beside a measurement of the limit


@dataclass(frozen=True)
class Case:
    """One model, at the shapes of a task."""

    task_name: str
    accelerator: Setting
    processor: Setting
    model: dict[str, Any] = field(default_factory=dict)  #: numbers other than the task's
    units: tuple[str, ...] = ()  #: where these make others than the task's

    def task(self, setting: Setting) -> Task:
        """Return the task with the batch of ``setting``, of which an epoch is one round.

        The rate follows the batch (Goyal et al. 2017), so that no number leaves its range.
        """
        task, size = find_task(self.task_name), setting.batch
        rate = task.optimizer.lr * size / task.training.global_batch_size
        return dataclasses.replace(
            task,
            model=task.model | self.model,
            units=self.units or task.units,
            data=dataclasses.replace(task.data, train_samples=setting.steps * size),
            training=dataclasses.replace(task.training, global_batch_size=size),
            optimizer=dataclasses.replace(task.optimizer, lr=rate),
        )


_FAST = "precision=bf16,compile=on"
_VGG_19 = [2, 2, 4, 4, 4]  # convolutions of each block

CASES = {
    "resnet50": Case(
        "resnet50/cluster",
        Setting(_FAST, batch=256, steps=20, rounds=15),
        Setting("dp=1", batch=8, steps=1, rounds=6),
    ),
    "vgg19": Case(
        "vgg/cluster",
        Setting(_FAST, batch=128, steps=20, rounds=15),
        Setting("dp=1", batch=2, steps=1, rounds=6),
        model={"depths": _VGG_19},
        units=(
            *(f"conv{b}.{i}" for b, depth in enumerate(_VGG_19, start=1) for i in range(depth)),
            *("fc1", "fc2", "fc3"),
        ),
    ),
    "vit-b-32": Case(
        "vit/cluster",
        Setting(_FAST, batch=512, steps=20, rounds=15),
        Setting("dp=1", batch=8, steps=1, rounds=6),
        model={"patch_px": 32},
    ),
    "bert-large": Case(
        "bert_large/cluster",
        Setting(_FAST, batch=32, steps=20, rounds=15),
        Setting("dp=1", batch=1, steps=1, rounds=3),
    ),
    # Small, so that the way an accelerator is used can be tried where there is none.
    "resnet-laptop-compiled": Case(
        "resnet/laptop",
        Setting(_FAST, batch=256, steps=20, rounds=15),
        Setting(_FAST, batch=64, steps=4, rounds=5),
    ),
}
