from __future__ import annotations

import pytest

from hybridperf.report.page import devices, machine_rows
from hybridperf.system.catalog import device_count
from tests.report.conftest import SYSTEM


def test_accelerators_stand_before_cores() -> None:
    accelerated = SYSTEM | {"accelerators_per_node": "8", "accelerator_model_name": "H200"}

    assert devices(SYSTEM) == "2 × EPYC core"  # noqa: RUF001
    assert devices(accelerated) == "8 × H200"  # noqa: RUF001
    assert devices(accelerated | {"number_of_nodes": "4"}) == "32 × H200"  # noqa: RUF001


@pytest.mark.parametrize("value", [None, {}, 7, [], "many", "-1", "9" * 50, {"deep": {}}])
def test_any_description_will_do(value: object) -> None:
    facts = {"host_processor_core_count": value, "number_of_nodes": value}

    assert devices(facts) in {"", "49 × core"}  # noqa: RUF001
    assert isinstance(machine_rows({"hybridperf": value, "framework": value}), list)
    assert devices(None) == ""
    assert machine_rows(None) == []


def test_fields_of_mlperf_are_rows_where_there_is_nothing_else() -> None:
    assert ("framework", "PyTorch 2.15") in machine_rows(SYSTEM)
    assert ("host processor core count", "2") in machine_rows(SYSTEM)


def test_devices_are_counted_over_all_nodes() -> None:
    accelerated = {"number_of_nodes": "4", "accelerators_per_node": "8"}
    cores = {"host_processors_per_node": "2", "host_processor_core_count": "24"}

    assert device_count(accelerated | cores) == 32
    assert device_count({"number_of_nodes": "1"} | cores) == 48
    assert device_count(cores) is None  # of how many nodes?
    assert device_count({"number_of_nodes": 1, "host_processors_per_node": "2"}) is None
    assert device_count(None) is None
