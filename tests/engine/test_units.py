"""The data file of unit tables is what the chains give, on small models by arithmetic."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from hybridperf.projection import units
from hybridperf.projection.units import Parameters
from hybridperf.tasks.registry import find_task
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.units import main, unit_table

if TYPE_CHECKING:
    import pytest
    from torch import Tensor

    from hybridperf.tasks.task import Task


def test_the_data_file_is_current(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["units"])
    main()

    path = Path(units.__file__).with_name("units.toml")
    assert capsys.readouterr().out == path.read_text(encoding="utf-8"), (
        "run: python -m hybridperf_reference.units > suite/hybridperf/projection/units.toml"
    )


class _Objective:
    """Of the objectives' methods, what counting needs."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")


def _small_chain(_: Task) -> Chain:
    parts = (
        Unit("first", nn.Sequential(nn.Linear(6, 10), nn.ReLU()), {"0": "column"}),
        Unit("second", nn.Sequential(nn.Linear(10, 7, bias=False), nn.GELU()), {"0": "row"}),
        Unit("third", nn.Linear(7, 3)),
    )
    return Chain(
        parts,
        _Objective(),  # type: ignore[arg-type]  # counting needs only the loss
        lambda batch: (torch.randn(batch, 6), torch.zeros(batch, dtype=torch.int64)),
    )


def test_counts_of_a_small_chain() -> None:
    task = dataclasses.replace(find_task("vit/laptop"), units=("first", "second", "third"))

    table = unit_table(task, _small_chain)

    first, second, third = table.units
    assert table.input_elements == 6
    assert [unit.forward_flops for unit in table.units] == [2 * 6 * 10, 2 * 10 * 7, 2 * 7 * 3]
    assert [unit.parameters for unit in table.units] == [6 * 10 + 10, 10 * 7, 7 * 3 + 3]
    # ReLU keeps its outputs, once with the next layer's inputs; GELU its inputs, and the last layer
    # GELU's outputs; the loss keeps log-probabilities.
    assert [unit.kept_elements for unit in table.units] == [10, 2 * 7, 3]
    assert first.parameter_groups == (
        Parameters("column", 10, 60),
        Parameters("column_bias", 10, 10),
    )
    assert second.parameter_groups == (Parameters("row", 7, 70),)
    assert third.parameter_groups == (Parameters("other", 3, 24, 2),)
    assert [unit.tp_parameters for unit in table.units] == [70, 70, 0]
    assert [unit.tp_inputs for unit in table.units] == [6, 10, 0]
    # Autocast has made ReLU's inputs narrow, but not the model's.
    assert [unit.tp_narrow_inputs for unit in table.units] == [0, 10, 0]
    assert [unit.tp_outputs for unit in table.units] == [0, 7, 0]
    assert second.tp_outputs_again == 7, "GELU keeps its inputs"
    assert all(unit.is_narrow for unit in table.units)
