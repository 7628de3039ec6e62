"""One count of accelerators and devices, on made-up descriptions and those of published rounds."""

from __future__ import annotations

import json
import tarfile
from typing import Any

import pytest

from hybridperf.report.page import devices
from hybridperf.score.scaling import devices_in_use
from hybridperf.system.catalog import accelerator_count, device_count
from tests.score.rounds import DATA, NEEDS_DATA


@pytest.mark.parametrize(
    ("facts", "accelerators", "in_all"),
    [
        ({"number_of_nodes": "2", "accelerators_per_node": "8"}, 16, 16),
        ({"number_of_nodes": 2.0, "accelerators_per_node": "8.0"}, 16, 16),
        ({"number_of_nodes": "2", "accelerators_per_node": "0"}, 0, None),
        ({"accelerators_per_node": "8"}, None, None),
        ({"number_of_nodes": "two", "accelerators_per_node": "8"}, None, None),
        ({"number_of_nodes": "0", "accelerators_per_node": "8"}, None, None),
        ({"number_of_nodes": "9999999", "accelerators_per_node": "9999999"}, None, None),
        ({"number_of_nodes": "2", "host_processor_core_count": "32"}, None, 64),
        (
            {
                "number_of_nodes": "8",
                "accelerators_per_node": "0",
                "host_processors_per_node": "2",
                "host_processor_core_count": "56",
            },
            0,
            896,
        ),
        (None, None, None),
    ],
)
def test_missing_or_invalid_counts_are_none(
    facts: dict[str, object] | None, accelerators: int | None, in_all: int | None
) -> None:
    assert accelerator_count(facts) == accelerators
    assert device_count(facts) == in_all


def _published_descriptions() -> dict[str, dict[str, Any]]:
    found = {}
    with tarfile.open(DATA / "mlperf_rounds.tar.xz") as archive:
        for member in archive:
            if "/systems/" in member.name and member.name.endswith(".json"):
                file = archive.extractfile(member)
                assert file is not None
                found[member.name.removeprefix("./")] = json.loads(file.read().decode("utf-8-sig"))
    return found


@NEEDS_DATA
def test_counts_of_published_descriptions_agree_everywhere() -> None:
    """Rounds v2.0 and v2.1 give counts as text, as 1 and as 1.0; some have no accelerators."""
    descriptions = _published_descriptions()

    assert {name.partition("/")[0] for name in descriptions} == {
        "training_results_v2.0",
        "training_results_v2.1",
    }
    for name, description in descriptions.items():
        nodes = int(float(description["number_of_nodes"]))
        accelerators = nodes * int(description["accelerators_per_node"])
        assert accelerator_count(description) == accelerators, name
        if accelerators:
            assert device_count(description) == accelerators, name
        used = devices_in_use("", description)
        assert (used.used if used else None) == device_count(description), name
        assert used is None or devices(description).startswith(f"{used.used:,} "), name
