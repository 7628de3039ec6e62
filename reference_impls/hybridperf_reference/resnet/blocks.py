"""The two residual blocks of ResNet (He et al. 2016), with the stride in the 3x3 as in v1.5."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BasicBlock", "Bottleneck"]


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1, 3x3 and 1x1 convolutions with BatchNorm, and a shortcut."""

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
