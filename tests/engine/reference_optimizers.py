"""LARS and LAMB in plain numpy, one parameter at a time, from the formulas of their papers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Optimizer

Weights = dict[str, "NDArray[np.float64]"]


def norm(values: NDArray[np.float64]) -> float:
    return float(np.sqrt((values**2).sum()))


@dataclass
class ReferenceLars:
    """You, Gitman and Ginsburg 2017, algorithm 1; biases and norms are plain momentum SGD."""

    config: Optimizer
    velocity: Weights = field(default_factory=dict)

    def step(self, weights: Weights, gradients: Weights, lr: float) -> None:
        config = self.config
        for name, w in weights.items():
            g, rate, decay = gradients[name], 1.0, 0.0
            if w.ndim > 1:
                decay = config.weight_decay
                length, slope = norm(w), norm(g)
                if length and slope:
                    rate = config.trust_coefficient * length
                    rate /= slope + decay * length + config.epsilon
            change = lr * rate * (g + decay * w)
            v = config.momentum * self.velocity.get(name, np.zeros_like(w)) + change
            self.velocity[name] = v
            weights[name] = w - (config.momentum * v + change if config.nesterov else v)


@dataclass
class ReferenceLamb:
    """You et al. 2020, algorithm 2; biases and norms are plain Adam."""

    config: Optimizer
    mean: Weights = field(default_factory=dict)
    square: Weights = field(default_factory=dict)
    steps: int = 0

    def step(self, weights: Weights, gradients: Weights, lr: float) -> None:
        config, self.steps = self.config, self.steps + 1
        for name, w in weights.items():
            g, zero = gradients[name], np.zeros_like(w)
            m = config.beta1 * self.mean.get(name, zero) + (1 - config.beta1) * g
            v = config.beta2 * self.square.get(name, zero) + (1 - config.beta2) * g**2
            self.mean[name], self.square[name] = m, v
            m, v = m / (1 - config.beta1**self.steps), v / (1 - config.beta2**self.steps)
            u, ratio = m / (np.sqrt(v) + config.epsilon), 1.0
            if w.ndim > 1:
                u = u + config.weight_decay * w
                length, change = norm(w), norm(u)
                if length and change:
                    ratio = length / change
            weights[name] = w - lr * ratio * u


REFERENCES = {"lars": ReferenceLars, "lamb": ReferenceLamb}
