"""Optimizers on local shards, with norms of whole layers, and the learning rate of a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import (
    Tensor,
    _foreach_add,  # one kernel for many tensors has no public name
    _foreach_add_,
    _foreach_addcmul_,
    _foreach_div,
    _foreach_div_,
    _foreach_lerp_,
    _foreach_mul_,
    _foreach_sqrt_,
    nn,
)
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hybridperf_reference.engine.gradients import local_gradients
from hybridperf_reference.engine.norms import local_parts, tensor_norms, zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.tasks.task import Optimizer

__all__ = ["AdamW", "Lamb", "Lars", "Sgd", "build_optimizer", "learning_rate"]


def build_optimizer(module: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer of ``config`` for the parameters of ``module``.

    SGD: Sutskever et al. (2013), with weight decay added to the gradient; AdamW: Loshchilov and
    Hutter (2019); LARS: You et al. (2017); LAMB: You et al. (2020). Parameters with one dimension
    or none are exempt from weight decay, and from the layer-wise rates of LARS and LAMB.
    """
    groups = _groups(module, config)
    if config.name == "lars":
        return Lars(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            trust_coefficient=config.trust_coefficient,
            epsilon=config.epsilon,
        )
    betas = config.beta1, config.beta2
    if config.name == "lamb":
        return Lamb(groups, lr=config.lr, beta1=betas[0], beta2=betas[1], epsilon=config.epsilon)
    if config.name == "adamw":
        return AdamW(groups, lr=config.lr, betas=betas, epsilon=config.epsilon)
    return Sgd(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)


def _groups(module: nn.Module, config: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups with and without weight decay."""
    own = list(module.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in own if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]] or groups[:1]  # torch needs one group


def learning_rate(step: int, steps_per_epoch: float, config: Optimizer) -> float:
    """Return the learning rate of ``step``, counted from 0.

    Warm-up is linear from zero (Goyal et al. 2017). With t the completed share of the decay, cosine
    is half a period from ``lr`` to ``end_lr`` (Loshchilov and Hutter 2017, SGDR without restarts),
    poly follows ``(1 - t) ** power``, linear ``1 - t``, and constant stays at ``lr``. The decay
    ends after ``decay_epochs`` or ``decay_steps``, counted from step 0.

    ``warmup_steps`` and ``decay_from = "start"`` are the schedule of MLPerf's BERT: a warm-up from
    ``start_warmup_step``, and a decay from step 0, so that the rate jumps at the end of the warm-up
    (mlcommons/training, retired_benchmarks/bert, optimization.py).
    """
    if config.warmup_steps:
        warmup: float = config.warmup_steps
        taken = step - config.start_warmup_step
    else:
        warmup, taken = config.warmup_epochs * steps_per_epoch, step + 1
    if taken < warmup:
        return config.lr * taken / warmup
    warm = 0.0 if config.decay_from == "start" else max(0.0, warmup + config.start_warmup_step)
    last = config.decay_steps or config.decay_epochs * steps_per_epoch
    done = max(0.0, step - warm) / max(1, last - warm)
    return config.end_lr + (config.lr - config.end_lr) * _remaining(min(done, 1.0), config)


def _remaining(done: float, config: Optimizer) -> float:
    """Return the remaining share of the decay to ``end_lr``, given the completed share ``done``."""
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "constant":
        return 1.0
    return float((1 - done) ** (config.power if config.schedule == "poly" else 1))


class _GroupUpdate:
    """The update of one parameter group: its gradients, which the optimizer transforms.

    ``weights`` and ``tensors`` are local shards [...] of parameters and updates, in one order.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.parameters: list[nn.Parameter] = [p for p in options["params"] if p.grad is not None]
        self.weights = local_parts(self.parameters)
        self.tensors = local_gradients(self.parameters)

    @property
    def layers(self) -> list[int]:
        """Return the indices of parameters with layer-wise rates: of two dimensions or more."""
        return [number for number, p in enumerate(self.parameters) if p.dim() > 1]


def _group_updates(optimizer: torch.optim.Optimizer) -> list[_GroupUpdate]:
    """Return an update of each parameter group that has gradients, not yet transformed."""
    groups = [_GroupUpdate(options) for options in optimizer.param_groups]
    return [group for group in groups if group.parameters]


def _layer_norms(groups: Sequence[_GroupUpdate]) -> list[tuple[Tensor, Tensor]]:
    """Return, for each group, the norms of its layers' weights and of their updates, both [layer].

    All norms of all groups are computed together, to share collectives as in `tensor_norms`.
    """
    layers = [(group, number) for group in groups for number in group.layers]
    if not layers:
        return [(Tensor(), Tensor()) for _ in groups]
    norms = tensor_norms(
        [group.weights[number] for group, number in layers]
        + [group.tensors[number] for group, number in layers],
        like=[group.parameters[number] for group, number in layers] * 2,
    )
    weights, changes = norms.chunk(2)
    sizes = [len(group.layers) for group in groups]
    return list(zip(weights.split(sizes), changes.split(sizes), strict=True))


def _scale_layers(group: _GroupUpdate, ratios: Tensor) -> None:
    """Multiply the update of each layer in place by its ratio in ``ratios`` [layer]."""
    for number, ratio in zip(group.layers, ratios.unbind(), strict=True):
        group.tensors[number].mul_(ratio)


# SGD and AdamW are elementwise, so torch's fused kernels update shards independently. Updating
# DTensors directly gives the same result, but torch then derives a sharding for each operation,
# which takes seconds in the first step.
class Sgd(torch.optim.Optimizer):
    """SGD with momentum (Sutskever et al. 2013); weight decay is added to the gradient."""

    def __init__(
        self, parameters: Iterable[dict[str, Any]], *, lr: float, momentum: float, nesterov: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        for group in _group_updates(self):
            options = group.options
            momenta: list[Tensor | None] = [None] * len(group.parameters)
            if options["momentum"]:
                momenta = [*local_parts(map(self._momentum, group.parameters))]
            sgd(
                group.weights,
                group.tensors,
                momenta,
                fused=True,
                lr=options["lr"],
                momentum=options["momentum"],
                dampening=0.0,
                nesterov=options["nesterov"],
                weight_decay=options["weight_decay"],
                maximize=False,
            )

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        """Return the momentum buffer of ``parameter``, in its shape and sharding."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        # With `fused`, load_state_dict moves `step` to the parameter's device, as the kernel needs.
        fused = {"fused": True}
        super().__init__(parameters, {"lr": lr, "betas": betas, "epsilon": epsilon} | fused)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        for group in _group_updates(self):
            options = group.options
            states = [self.state[p] or self._begin(p) for p in group.parameters]
            beta1, beta2 = options["betas"]
            adamw(
                group.weights,
                group.tensors,
                local_parts([state["exp_avg"] for state in states]),
                local_parts([state["exp_avg_sq"] for state in states]),
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=options["lr"],
                weight_decay=options["weight_decay"],
                eps=options["epsilon"],
                maximize=False,
            )

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the new state of ``parameter``, in its shape and sharding."""
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"] = zeros_like(parameter)
        state["exp_avg_sq"] = zeros_like(parameter)
        return state


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017, algorithm 1), as in MLPerf's ResNet.

    For a layer's weights w and gradient g, its velocity v, learning rate lr, momentum m, weight
    decay d and trust coefficient c::

        rate = c |w| / (|g| + d |w| + epsilon)    1 where |w| or |g| is 0
        v = m v + lr rate (g + d w)
        w = w - v                                 nesterov: w - (m v + lr rate (g + d w))

    Parameters with one dimension or none have rate 1; their parameter group sets their weight
    decay. Parameters may be DTensors: norms are over whole tensors.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        trust_coefficient: float,
        epsilon: float,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.0}
        own = {"trust_coefficient": trust_coefficient, "epsilon": epsilon}
        super().__init__(parameters, defaults | own)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        groups = _group_updates(self)
        for group, (weights, gradients) in zip(groups, _layer_norms(groups), strict=True):
            options = group.options
            rates = weights / (gradients + options["weight_decay"] * weights + options["epsilon"])
            known = (weights > 0) & (gradients > 0)
            group.tensors = list(
                _foreach_add(group.tensors, group.weights, alpha=options["weight_decay"])
            )
            _scale_layers(group, torch.where(known, options["trust_coefficient"] * rates, 1.0))
            self._apply_momentum(group)

    def _apply_momentum(self, group: _GroupUpdate) -> None:
        """Update velocities and weights of ``group`` from its scaled gradients."""
        options = group.options
        for parameter in group.parameters:
            if not self.state[parameter]:
                self.state[parameter]["velocity"] = zeros_like(parameter)
        velocities = local_parts(self.state[p]["velocity"] for p in group.parameters)
        _foreach_mul_(velocities, options["momentum"])
        _foreach_add_(velocities, group.tensors, alpha=options["lr"])
        if options["nesterov"]:
            _foreach_add_(group.weights, group.tensors, alpha=-options["lr"])
        _foreach_add_(
            group.weights, velocities, alpha=-options["momentum"] if options["nesterov"] else -1.0
        )


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al. 2020, algorithm 2), with phi the identity.

    For a layer's weights w and gradient g, its moments m and v, step t, learning rate lr, and
    weight decay d::

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g
        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + d w
        w = w - lr (|w| / |u|) u                  ratio 1 where |w| or |u| is 0

    Parameters with one dimension or none have ratio 1; their parameter group sets their weight
    decay. Gradients are not clipped here. Parameters may be DTensors: norms are over whole
    tensors.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
    ) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(parameters, defaults | {"weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        groups = _group_updates(self)
        for group in groups:
            self._compute_directions(group)
        for group, (weights, changes) in zip(groups, _layer_norms(groups), strict=True):
            known = (weights > 0) & (changes > 0)
            _scale_layers(group, torch.where(known, weights / changes, 1.0))
            _foreach_add_(group.weights, group.tensors, alpha=-group.options["lr"])

    def _compute_directions(self, group: _GroupUpdate) -> None:
        """Replace the gradients of ``group`` by the update direction u, and advance its moments."""
        options = group.options
        states = [self.state[parameter] for parameter in group.parameters]
        for parameter, state in zip(group.parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                state["mean"] = zeros_like(parameter)
                state["square"] = zeros_like(parameter)
            state["step"] += 1
        means = local_parts(state["mean"] for state in states)
        squares = local_parts(state["square"] for state in states)
        steps = [state["step"].item() for state in states]
        _foreach_lerp_(means, group.tensors, 1 - options["beta1"])
        _foreach_mul_(squares, options["beta2"])
        _foreach_addcmul_(squares, group.tensors, group.tensors, 1 - options["beta2"])
        roots = _foreach_div(squares, [1 - options["beta2"] ** step for step in steps])
        _foreach_sqrt_(roots)
        _foreach_add_(roots, options["epsilon"])
        changes = _foreach_div(means, [1 - options["beta1"] ** step for step in steps])
        _foreach_div_(changes, roots)
        _foreach_add_(changes, group.weights, alpha=options["weight_decay"])
        group.tensors = list(changes)
