"""The vision transformer as a chain (Dosovitskiy et al. 2021), with torchvision's layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hybridperf.tasks.schema import build
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.images.objective import image_example, image_objective
from hybridperf_reference.transformer import SPLIT, Attention, EncoderLayer, FeedForward

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["ClassHead", "PatchEmbeddings", "VitShape", "vit_chain"]

_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class VitShape:
    """The dimensions of a vision transformer, from the task's ``[model]`` table."""

    channels: int
    image_px: int
    patch_px: int
    hidden: int
    layers: int
    heads: int
    inner: int  #: hidden features of the feed-forward networks
    classes: int
    position_std: float = 0.02  #: of the initial position embeddings


class PatchEmbeddings(nn.Module):
    """Patch embeddings and a class token, plus learned position embeddings."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        patch, hidden = shape.patch_px, shape.hidden
        self.patches = nn.Conv2d(shape.channels, hidden, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        tokens = (shape.image_px // patch) ** 2 + 1
        positions = torch.empty(1, tokens, hidden)
        self.positions = nn.Parameter(positions.normal_(std=shape.position_std))
        fan_in = shape.channels * patch**2
        nn.init.trunc_normal_(self.patches.weight, std=math.sqrt(1 / fan_in))
        _zero(self.patches)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images [batch, channel, height, width] to [batch, token, hidden]."""
        patches = self.patches(inputs).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(inputs), -1, -1)
        return torch.cat([class_token, patches], dim=1) + self.positions


class ClassHead(nn.Module):
    """Classify by the class token."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden, _EPSILON)
        self.fc = nn.Linear(hidden, classes)
        nn.init.zeros_(self.fc.weight)
        _zero(self.fc)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, token, hidden] to logits [batch, class]."""
        outputs: Tensor = self.fc(self.norm(inputs[:, 0]))
        return outputs


def vit_chain(task: Task) -> Chain:
    """Build the task's vision transformer: embeddings, encoder layers and a head.

    Raises:
        UserError: exit status 2 if the task's ``[model]`` table does not fit `VitShape`.
    """
    shape = build(VitShape, task.model, path=task.name, at="model")
    units = [Unit("embeddings", PatchEmbeddings(shape))]
    for index in range(shape.layers):
        layer = EncoderLayer(
            shape.hidden, shape.heads, shape.inner, norm_first=True, epsilon=_EPSILON
        )
        layer.apply(_initialize)
        units.append(Unit(f"layers.{index}", layer, SPLIT))
    units.append(Unit("head", ClassHead(shape.hidden, shape.classes)))
    return Chain(
        units=tuple(units),
        objective=image_objective(task, shape.image_px),
        example=partial(image_example, channels=shape.channels, image_px=shape.image_px),
    )


def _initialize(module: nn.Module) -> None:
    if isinstance(module, Attention):
        for linear in (module.query, module.key, module.value):
            # The bound of a single matrix for all three.
            nn.init.xavier_uniform_(linear.weight, gain=1 / math.sqrt(2))
            _zero(linear)
        _zero(module.out)
    elif isinstance(module, FeedForward):
        for linear in (module.inner, module.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)


def _zero(layer: nn.Linear | nn.Conv2d) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
