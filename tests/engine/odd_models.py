"""Small models with what real ones have and the families have not; each one is a row of `ODD`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from hybridperf_reference.engine.chain import MOST_CPU_PARAMETERS, Chain, Unit
from hybridperf_reference.images.objective import SmallImages
from hybridperf_reference.models import chain_of
from hybridperf_reference.transformer import SPLIT, EncoderLayer
from tests.engine.families import SEED, Family

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective

WIDTH = 12
CLASSES = 10
ROWS = 8  # of an image, and pixels in each


@dataclass(frozen=True, eq=False)
class OddModel(Family):
    """A model on images of 8 px that is none of the suite's families."""

    layers: Callable[[], list[nn.Module | Unit]] = list  #: a unit each, in order
    objective: Callable[[Task], Objective] = lambda task: SmallImages(task, ROWS)
    batch: int = 24  # which 1, 2, 3, 4, 6 and 8 divide
    targets: tuple[int, ...] = ()  #: shape of a sample's

    def built(self) -> Chain:
        return chain_of(self.task(), SEED, self._build)

    def _build(self, task: Task) -> Chain:
        modules = self.layers()
        units = (m if isinstance(m, Unit) else Unit(f"u{n}", m) for n, m in enumerate(modules))
        return Chain(tuple(units), self.objective(task), self._example)

    def _example(self, batch: int) -> tuple[Tensor, Tensor]:
        targets = torch.zeros(batch, *self.targets, dtype=torch.int64)
        return torch.randn(batch, 1, ROWS, ROWS), targets


def odd(
    layers: Callable[[], list[nn.Module | Unit]], *, dropout: bool = False, **options: Any
) -> OddModel:
    names = tuple(
        layer.name if isinstance(layer, Unit) else f"u{number}"
        for number, layer in enumerate(layers())
    )
    model = {"dropout": 0.1} if dropout else {}
    return OddModel("vit/laptop", model, names, dtype=torch.float64, layers=layers, **options)


class Apply(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self._function(inputs)


class ActivatedNorm(nn.BatchNorm1d):
    """BatchNorm and its activation in one layer, as timm's BatchNormAct2d."""

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.silu(super().forward(inputs))


class Centred(nn.Module):
    """Keep a moving average of all inputs, which evaluation subtracts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))
        self.average: Tensor
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.average = self.average.lerp(inputs.detach().mean(dim=0), 0.2)
            return torch.tanh(self.linear(inputs))
        return torch.tanh(self.linear(inputs - 0.01 * self.average))


class Unused(nn.Module):
    """A layer with a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.linear(inputs))


class Experts(nn.Module):
    """A mixture of experts, which runs only those that some sample, or token, is routed to."""

    def __init__(self, experts: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))

    def forward(self, inputs: Tensor) -> Tensor:
        shares = (4 * self.gate(inputs)).softmax(dim=-1)
        best, outputs = shares.argmax(dim=-1), inputs
        for number, expert in enumerate(self.experts):
            own = (best == number).unsqueeze(-1)
            if own.any():
                made = expert(inputs) * shares[..., number : number + 1]
                outputs = outputs + torch.where(own, torch.tanh(made), 0)
        return outputs


class Either(nn.Module):
    """Run one of two modules, in training as the sum of the micro-batch says."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, inputs: Tensor) -> Tensor:
        other = self.training and (100 * inputs.sum()).floor() % 2
        chosen = self.other if other else self.one
        outputs: Tensor = chosen(inputs)
        return outputs


class Constant(nn.Module):
    """Return a parameter, whatever the inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((WIDTH,), 0.2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.value.expand(len(inputs), WIDTH) * 2


class LayerDrop(nn.Module):
    """Skip a layer at random in training (Fan et al. 2020)."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.layer = nn.Sequential(norm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.4:
            return inputs
        outputs: Tensor = inputs + self.layer(inputs)
        return outputs


class Looked(nn.Module):
    """Add rows of a frozen table of more elements than a trial on the CPU may have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = frozen(nn.Embedding(MOST_CPU_PARAMETERS // WIDTH + 1, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        rows: Tensor = self.table((images.flatten(1) > 0).sum(dim=1) * 1000)
        return rows + images.flatten(1)[:, :WIDTH]


class Scaled(nn.Module):
    """A layer whose outputs are scaled by a parameter of one number, as CLIP's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(0.7))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.linear(inputs) * self.scale)


class DroppedMlp(nn.Module):
    """Two linear layers that tensor parallelism splits, with dropout between and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(torch.tanh(self.up(inputs)))
        outputs: Tensor = inputs + self.dropout(self.down(hidden))
        return outputs


class SeveralTargets(SmallImages):
    """An image of class c has 1 + c % 4 targets; the rest of four are not counted."""

    def targets(self, *which: Any) -> Tensor:
        labels = super().targets(*which).view(-1, 1)
        places = torch.arange(4)
        return ((labels + places) % CLASSES).masked_fill(places > labels % 4, -100)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits = outputs.unflatten(1, (4, CLASSES)).flatten(0, 1)
        return functional.cross_entropy(logits, targets.flatten(), reduction="sum")

    def count(self, targets: Tensor) -> Tensor:  # type: ignore[override]  # depends on the labels
        return (targets >= 0).sum()

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs[:, :CLASSES].argmax(dim=1)


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(ROWS * ROWS, WIDTH))


def dense(outputs: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, outputs), nn.Tanh())


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


def half_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    frozen(module[0])
    module[2].weight.requires_grad = False
    return module


def tied() -> list[nn.Module | Unit]:
    first, again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    again.weight = first.weight
    return [flat(), first, nn.Tanh(), again, nn.Linear(WIDTH, CLASSES)]


def thrice() -> list[nn.Module | Unit]:
    """Let three units share a weight, two of them another, and one of them both of a bias."""
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    linears[1].weight = linears[3].weight = linears[0].weight
    linears[2].bias = linears[3].bias
    middle = nn.Sequential(linears[1], nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    middle[2].weight = linears[1].weight
    last = nn.Linear(WIDTH, CLASSES)
    return [flat(), linears[0], nn.Tanh(), middle, linears[2], nn.Tanh(), linears[3], last]


def shared_norms() -> list[nn.Module | Unit]:
    """Let encoders share what tensor parallelism does not split."""
    first, *units, last = encoders()
    layers = [unit.module for unit in units if isinstance(unit, Unit)]
    one, other = (layer.get_submodule("mlp_norm") for layer in layers)
    one.bias = layers[0].get_submodule("attention_norm").bias  # twice in one unit
    other.weight, other.bias = one.weight, one.bias
    return [first, *units, last]


def norms(**options: Any) -> list[nn.Module | Unit]:
    kinds = [nn.BatchNorm1d(WIDTH, **options) for _ in range(2)]
    return [flat(), nn.Sequential(kinds[0], nn.Tanh()), dense(), kinds[1], dense(CLASSES)]


def dropped() -> list[nn.Module | Unit]:
    """Let units with dropout have frozen, no and tied-to-the-batch parameters."""
    first = nn.Sequential(flat(), nn.Dropout(0.1))
    norm = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
    return [first, nn.Dropout(0.3), frozen(dense()), norm, dense(CLASSES)]


def dropped_mlp() -> list[nn.Module | Unit]:
    return [flat(), Unit("u1", DroppedMlp(), {"up": "column", "down": "row"}), dense(CLASSES)]


def encoders(dropout: float = 0.0) -> list[nn.Module | Unit]:
    options: dict[str, Any] = {"epsilon": 1e-6, "dropout": dropout}
    layers = [EncoderLayer(WIDTH, 6, 2 * WIDTH, norm_first=n == 0, **options) for n in range(2)]
    rows = nn.Sequential(nn.Flatten(1, 2), nn.Linear(ROWS, WIDTH))
    padded = Apply(lambda tokens: torch.cat([tokens, tokens[:, :5] * 0.5], dim=1))  # 13 tokens
    ends = nn.Sequential(Apply(lambda tokens: tokens.mean(dim=1)), nn.Linear(WIDTH, CLASSES))
    units = [Unit(f"u{number + 1}", layer, SPLIT) for number, layer in enumerate(layers)]
    return [nn.Sequential(rows, padded), *units, ends]


def routed_encoders() -> list[nn.Module | Unit]:
    """Route tokens, of which ranks under sequence parallelism have different ones."""
    first, *units, last = encoders()
    split = {f"0.{name}": kind for name, kind in SPLIT.items()}
    routed = [
        Unit(unit.name, nn.Sequential(unit.module, Experts()), split)
        for unit in units
        if isinstance(unit, Unit)
    ]
    return [first, *routed, last]


def either() -> list[nn.Module | Unit]:
    """Let each unit, also the first, use parameters or none, and its inputs or not, by its data."""
    return [
        Either(flat(), frozen(flat())),
        Either(dense(), dense()),
        Either(nn.Identity(), dense()),
        Either(dense(), Constant()),
        Either(nn.Identity(), Apply(torch.zeros_like)),
        dense(CLASSES),
    ]


def tied_encoders(kind: str = "weight") -> list[nn.Module | Unit]:
    """Let two units that tensor parallelism splits share the weight of a linear, or its bias."""
    first, *units, last = encoders()
    linears = [unit.module.get_submodule(next(iter(SPLIT))) for unit in units]  # type: ignore[union-attr]  # units of encoders are units
    setattr(linears[1], kind, getattr(linears[0], kind))
    return [first, *units, last]


def mixed() -> list[nn.Module | Unit]:
    """Let a unit that splits tokens share a parameter with one that does not."""
    first, *units, last = encoders()
    assert isinstance(first, nn.Sequential)
    assert isinstance(units[0], Unit)
    units[0].module.get_submodule("mlp_norm").bias = first[0][1].bias  # type: ignore[index]
    return [first, *units, last]


def transposed() -> list[nn.Module | Unit]:
    turn = Apply(lambda tokens: tokens.transpose(1, 2))
    return [
        nn.Sequential(nn.Flatten(1, 2), nn.Linear(ROWS, WIDTH), turn),  # ends with a view
        nn.Sequential(nn.Linear(ROWS, 3 * ROWS), nn.Tanh(), nn.Linear(3 * ROWS, ROWS), turn),
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)),
        nn.Sequential(turn, nn.Flatten(), nn.Linear(WIDTH * ROWS, CLASSES)),
    ]


ODD = {
    "tied": odd(tied, steps=5),
    "thrice": odd(thrice, steps=5),
    "shared_norms": odd(shared_norms, tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "frozen": odd(
        lambda: [frozen(flat()), frozen(dense()), half_frozen(), frozen(dense()), dense(CLASSES)]
    ),
    "bare": odd(lambda: [flat(), nn.Tanh(), nn.Identity(), dense(CLASSES), nn.Flatten()]),
    "activated": odd(
        lambda: [flat(), ActivatedNorm(WIDTH), dense(), ActivatedNorm(WIDTH), dense(CLASSES)],
        batch_norm=True,
    ),
    "without_scale": odd(lambda: norms(affine=False), batch_norm=True),
    "cumulative": odd(lambda: norms(momentum=None), batch_norm=True),
    "buffers": odd(
        lambda: [flat(), Centred(), spectral_norm(nn.Linear(WIDTH, WIDTH)), dense(CLASSES)],
        batch_norm=True,  # what a buffer has depends on how batches are cut, as there
    ),
    "unused": odd(lambda: [flat(), Unused(), Unused(), dense(CLASSES)]),
    "experts": odd(lambda: [flat(), Experts(), Experts(), dense(CLASSES)]),
    "either": odd(either, batch_norm=True),  # how a batch is cut decides what is used
    "layer_drop": odd(
        lambda: [flat(), LayerDrop(), LayerDrop(), LayerDrop(), dense(CLASSES)], dropout=True
    ),
    "norm_drop": odd(
        lambda: [flat(), LayerDrop(nn.BatchNorm1d), LayerDrop(nn.BatchNorm1d), dense(CLASSES)],
        dropout=True,
        batch_norm=True,
    ),
    # In training it reads values that tensors on the meta device, where it is tried, have not.
    "large": odd(
        lambda: [Looked(), Either(dense(), dense()), dense(), dense(CLASSES)], batch_norm=True
    ),
    "scaled": odd(lambda: [flat(), Scaled(), Scaled(), dense(CLASSES)]),
    "integers": odd(
        lambda: [
            Apply(lambda images: (images.flatten(1) > 0).long().cumsum(dim=1) // 4),
            nn.Sequential(nn.Embedding(17, WIDTH), Apply(lambda words: words.mean(dim=1))),
            dense(),
            dense(CLASSES),
        ]
    ),
    "targets": odd(
        lambda: [flat(), dense(), dense(), dense(4 * CLASSES)],
        objective=lambda task: SeveralTargets(task, ROWS),
        targets=(4,),
    ),
    "unequal": odd(
        lambda: [flat(), dense(60), nn.Linear(60, 500), nn.ReLU(), nn.Linear(500, CLASSES)]
    ),
    "encoders": odd(encoders, tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "routed_encoders": odd(routed_encoders, tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "tied_encoders": odd(tied_encoders, tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "tied_biases": odd(lambda: tied_encoders("bias"), tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "mixed": odd(mixed, tensor_sizes=(6, 2 * WIDTH), tokens=13),
    "transposed": odd(transposed),
    "dropped": odd(dropped, dropout=True, batch_norm=True),
    "dropped_mlp": odd(dropped_mlp, dropout=True, tensor_sizes=(2 * WIDTH,)),
    "dropped_encoders": odd(
        lambda: encoders(0.1), dropout=True, tensor_sizes=(6, 2 * WIDTH), tokens=13
    ),
}
#: Each odd model also trains with these, as ``frozen_adamw``, its gradients clipped.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 0.01, "epsilon": 1e-6, "weight_decay": 0.1, "clip_norm": 0.5},
    "lamb": {"lr": 0.01, "epsilon": 1e-6, "weight_decay": 0.1, "clip_norm": 0.5},
    "lars": {"lr": 0.5, "weight_decay": 0.01, "clip_norm": 0.5},
}
ODD |= {
    f"{model}_{name}": dataclasses.replace(row, optimizer={"name": name} | options)
    for model, row in ODD.items()
    for name, options in OPTIMIZERS.items()
}
