"""ResNet as a chain (He et al. 2016), with torchvision's layers in configurable sizes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from hybridperf.tasks.schema import build
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.images.objective import image_example, image_objective

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["BasicBlock", "Bottleneck", "ResnetShape", "resnet_chain"]


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1, 3x3 and 1x1 convolutions with BatchNorm, and a shortcut.

    The stride is in the 3x3 convolution, as in v1.5.
    """

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)
        self.relu = nn.ReLU()  # not in place: a stage may begin here

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [batch, outputs, height / stride, width / stride] for [batch, inputs, ...]."""
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        summed: Tensor = self.bn3(self.conv3(hidden)) + shortcut
        return torch.relu(summed)


class BasicBlock(nn.Module):
    """Basic block: two 3x3 convolutions with BatchNorm, and a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [batch, outputs, height / stride, width / stride] for [batch, inputs, ...]."""
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        summed: Tensor = self.bn2(self.conv2(hidden)) + shortcut
        return torch.relu(summed)


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return the projection shortcut, or None if the identity has the right shape."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


@dataclass(frozen=True, slots=True)
class ResnetShape:
    """The dimensions of a ResNet, from the task's ``[model]`` table."""

    channels: int
    image_px: int
    width: int  #: inner channels of the first layer's blocks
    depths: tuple[int, ...]  #: blocks per layer
    expansion: int  #: ratio of a block's output channels to its inner channels
    classes: int
    block: Literal["bottleneck", "basic"] = "bottleneck"
    stem: Literal["small", "large"] = "small"  #: 3x3; or 7x7, stride 2, then max pooling


def resnet_chain(task: Task) -> Chain:
    """Build the task's ResNet: a stem, residual blocks and a head.

    Raises:
        UserError: exit status 2 if the task's ``[model]`` table does not fit `ResnetShape`.
    """
    shape = build(ResnetShape, task.model, path=task.name, at="model")
    kind = {"bottleneck": Bottleneck, "basic": BasicBlock}[shape.block]
    units = [Unit("stem", _stem(shape))]
    channels = shape.width
    for layer, depth in enumerate(shape.depths):
        width = shape.width * 2**layer
        for index in range(depth):
            stride = 2 if layer > 0 and index == 0 else 1
            block = kind(channels, width, width * shape.expansion, stride)
            channels = width * shape.expansion
            units.append(Unit(f"layer{layer + 1}.{index}", block))
    units.append(Unit("head", _head(channels, shape.classes)))
    for unit in units:
        unit.module.apply(_initialize)
        unit.module.to(memory_format=torch.channels_last)
    return Chain(
        units=tuple(units),
        objective=image_objective(task, shape.image_px),
        example=partial(image_example, channels=shape.channels, image_px=shape.image_px),
    )


def _stem(shape: ResnetShape) -> nn.Sequential:
    large = shape.stem == "large"
    size, stride = (7, 2) if large else (3, 1)
    layers = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(shape.channels, shape.width, size, stride, padding=size // 2, bias=False),
        bn=nn.BatchNorm2d(shape.width),
        relu=nn.ReLU(),
    )
    if large:
        layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(layers)


def _head(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes)
        )
    )


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, Bottleneck):
        # A block is the identity at initialization (Goyal et al. 2017).
        nn.init.zeros_(module.bn3.weight)
    elif isinstance(module, BasicBlock):
        nn.init.zeros_(module.bn2.weight)
