"""Parameter updates on local shards; for LARS and LAMB, with norms of whole layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hybridperf_reference.engine.gradients import local_gradients
from hybridperf_reference.engine.norms import local_parts, tensor_norms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

__all__ = ["GroupUpdate", "group_updates", "layer_norms", "scale_layers"]


class GroupUpdate:
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


def group_updates(optimizer: Optimizer) -> list[GroupUpdate]:
    """Return an update of each parameter group that has gradients, not yet transformed."""
    groups = [GroupUpdate(options) for options in optimizer.param_groups]
    return [group for group in groups if group.parameters]


def layer_norms(groups: Sequence[GroupUpdate]) -> list[tuple[Tensor, Tensor]]:
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


def scale_layers(group: GroupUpdate, ratios: Tensor) -> None:
    """Multiply the update of each layer in place by its ratio in ``ratios`` [layer]."""
    for number, ratio in zip(group.layers, ratios.unbind(), strict=True):
        group.tensors[number].mul_(ratio)
