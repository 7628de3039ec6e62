"""VGG without BatchNorm as a chain (Simonyan and Zisserman 2015), with torchvision's layers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from hybridperf.tasks.schema import build
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.images.objective import image_example, image_objective

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["VggShape", "vgg_chain"]


@dataclass(frozen=True, slots=True)
class VggShape:
    """The dimensions of a VGG, from the task's ``[model]`` table."""

    channels: int
    image_px: int
    widths: tuple[int, ...]  #: output channels of the convolutions, per block
    depths: tuple[int, ...]  #: convolutions per block; max pooling follows the last
    pooled_px: int  #: height and width of the classifier's input
    hidden: int  #: features of the classifier's two hidden layers
    dropout: float  #: of the classifier's hidden layers
    classes: int


def vgg_chain(task: Task) -> Chain:
    """Build the task's VGG: one unit per convolution and per layer of the classifier.

    Raises:
        UserError: exit status 2 if the task's ``[model]`` table does not fit `VggShape`.
    """
    shape = build(VggShape, task.model, path=task.name, at="model")
    units, channels = [], shape.channels
    for block, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True), start=1):
        for index in range(depth):
            layers = OrderedDict[str, nn.Module](
                conv=nn.Conv2d(channels, width, 3, padding=1), relu=nn.ReLU()
            )
            if index == depth - 1:
                layers["pool"] = nn.MaxPool2d(2)
            units.append(Unit(f"conv{block}.{index}", nn.Sequential(layers)))
            channels = width
    units += _classifier(channels, shape)
    for unit in units:
        unit.module.apply(_initialize)
        unit.module.to(memory_format=torch.channels_last)
    last = units[-1].module.get_submodule("linear")
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=0.01)
    return Chain(
        units=tuple(units),
        objective=image_objective(task, shape.image_px),
        example=partial(image_example, channels=shape.channels, image_px=shape.image_px),
    )


def _classifier(channels: int, shape: VggShape) -> list[Unit]:
    """Return the three units of the fully connected classifier."""

    def layers(linear: nn.Linear) -> OrderedDict[str, nn.Module]:
        return OrderedDict(linear=linear, relu=nn.ReLU(), dropout=nn.Dropout(shape.dropout))

    first = OrderedDict[str, nn.Module](
        pool=nn.AdaptiveAvgPool2d(shape.pooled_px), flatten=nn.Flatten()
    )
    first.update(layers(nn.Linear(channels * shape.pooled_px**2, shape.hidden)))
    second = layers(nn.Linear(shape.hidden, shape.hidden))
    last = OrderedDict[str, nn.Module](linear=nn.Linear(shape.hidden, shape.classes))
    # Row-parallel: the first layer has many inputs and few outputs, so the all-reduce is small.
    return [
        Unit("fc1", nn.Sequential(first), {"linear": "row"}),
        Unit("fc2", nn.Sequential(second)),
        Unit("fc3", nn.Sequential(last)),
    ]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        # fan_in, unlike torchvision: without normalization it preserves the forward variance.
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        assert module.bias is not None
        nn.init.zeros_(module.bias)
