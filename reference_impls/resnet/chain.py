"""ResNet with bottleneck blocks as a chain (He et al. 2016; stride in the 3x3, as in v1.5)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from reference_impls.engine.chain import Augment, Chain, Unit
from reference_impls.resnet.data import affine, draw_affine, normalise
from suite.tasks.schema import build

if TYPE_CHECKING:
    from suite.tasks.task import Task

__all__ = ["Bottleneck", "Shape", "resnet_chain"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a ResNet, as the task's ``[model]`` table gives them."""

    channels: int
    image_px: int
    width: int  #: channels inside the first layer's bottlenecks
    depths: tuple[int, ...]  #: bottlenecks of each layer
    expansion: int  #: a bottleneck's output channels over its inner ones
    classes: int


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, all normalised."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()  # never in place: a stage may begin here

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[batch, outputs, height / stride, width / stride]``."""
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        summed: Tensor = self.bn3(self.conv3(hidden)) + shortcut
        return torch.relu(summed)


def resnet_chain(task: Task) -> Chain:
    """Return the task's ResNet: a stem, its bottlenecks and a head."""
    shape = build(Shape, task.model, path=task.name, at="model")
    units = [Unit("stem", _stem(shape))]
    channels = shape.width
    for layer, depth in enumerate(shape.depths):
        width = shape.width * 2**layer
        for index in range(depth):
            stride = 2 if layer > 0 and index == 0 else 1
            block = Bottleneck(channels, width, width * shape.expansion, stride)
            channels = width * shape.expansion
            units.append(Unit(f"layer{layer + 1}.{index}", block))
    units.append(Unit("head", _head(channels, shape.classes)))
    for unit in units:
        unit.module.apply(_initialise)
        unit.module.to(memory_format=torch.channels_last)

    return Chain(
        units=tuple(units),
        prepare=partial(normalise, data=task.data, size_px=shape.image_px),
        augment=Augment(draw=partial(draw_affine, task=task), apply=affine),
        example_shape=(shape.channels, shape.image_px, shape.image_px),
        classes=shape.classes,
    )


def _stem(shape: Shape) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(shape.channels, shape.width, 3, padding=1, bias=False),
            bn=nn.BatchNorm2d(shape.width),
            relu=nn.ReLU(),
        )
    )


def _head(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes)
        )
    )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, Bottleneck):
        # A block begins as its shortcut (Goyal et al. 2017).
        nn.init.zeros_(module.bn3.weight)
