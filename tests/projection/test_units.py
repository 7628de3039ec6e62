"""The unit tables of the suite's tasks, read without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hybridperf.errors import UserError
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import task_names

# GFLOPs of a forward pass and millions of parameters, as torchvision 0.29 states its models.
TORCHVISION = {
    "resnet50/cluster": (8.178, 25.557),
    "resnet152/cluster": (23.027, 60.193),
    "vgg/cluster": (30.941, 138.358),
}


def test_every_task_has_a_table() -> None:
    tables = [load_units(name) for name in task_names()]

    assert [table.task for table in tables] == task_names()
    assert all(len(table.units) > 2 for table in tables)


@pytest.mark.parametrize("name", TORCHVISION)
def test_totals_are_those_of_the_published_model(name: str) -> None:
    table = load_units(name)

    assert (round(table.forward_flops / 1e9, 3), round(table.parameters / 1e6, 3)) == (
        TORCHVISION[name]
    )


def test_equal_layers_are_one_row_and_many_units() -> None:
    units = load_units("bert_large/cluster").units

    assert [unit.name for unit in units] == [
        "embeddings",
        *(f"layers.{number}" for number in range(24)),
        "head",
    ]
    # Korthikanti et al. (2022), table 2: 34 bytes a token and hidden feature in fp16 for a layer
    # without attention's matrix, of which two one-byte masks do not double in fp32.
    korthikanti = (2 * (34 - 2) + 2) * 512 * 1024 / 4
    assert units[1].kept_elements == pytest.approx(korthikanti, rel=0.005)
    assert units[1].tp_outputs == units[1].tp_inputs == 2 * 512 * 1024


def test_a_name_near_that_of_a_task_is_suggested() -> None:
    with pytest.raises(UserError, match=r"did you mean bert/laptop or"):
        load_units("bert/labtop")


def test_tables_are_read_without_torch() -> None:
    program = (
        "import sys; from hybridperf.projection.units import load_units; "
        "load_units('vit/laptop'); sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
