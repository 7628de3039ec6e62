from __future__ import annotations

import pytest

from hybridperf.run.channel import NodeFacts
from hybridperf.run.nodes import first_difference

ORDER: dict[str, object] = {"nodes": 2, "plan": "dp=2"}
HARDWARE: dict[str, object] = {
    "accelerators_per_node": "8",
    "accelerator_model_name": "H200",
    "accelerator_memory_capacity": "141 GB",
    "host_processor_model_name": "Z80",
    "framework": "PyTorch 2.11",
}


@pytest.mark.parametrize(
    ("order", "hardware", "sentence"),
    [
        ({}, {}, ""),
        (
            {"plan": "dp=1,pp=2"},
            {"framework": "PyTorch 2.15"},
            "expected plan dp=2 on node 1 as on node 0, found dp=1,pp=2; give every node the same",
        ),
        (
            {},
            {"framework": "PyTorch 2.15"},
            "expected framework PyTorch 2.11 on node 1 as on node 0, found PyTorch 2.15; choose",
        ),
        (
            {},
            {"accelerator_model_name": ""},
            "expected accelerator_model_name H200 on node 1 as on node 0, found nothing; choose",
        ),
    ],
)
def test_the_first_difference_is_named(
    order: dict[str, object], hardware: dict[str, object], sentence: str
) -> None:
    found = first_difference(
        NodeFacts(ORDER, HARDWARE), NodeFacts(ORDER | order, HARDWARE | hardware), 1
    )

    assert (found is not None) == bool(sentence)
    assert found is None or found.sentence.startswith(sentence)
