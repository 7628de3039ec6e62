from __future__ import annotations

import pytest

from hybridperf.run.consistency import first_difference

ORDER = {"nodes": 2, "plan": "dp=2"}
HARDWARE = {"accelerator_model_name": "H200", "framework": "PyTorch 2.11"}


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
    found = first_difference((ORDER, HARDWARE), (ORDER | order, HARDWARE | hardware), 1)

    assert (found is not None) == bool(sentence)
    assert found is None or found.sentence.startswith(sentence)
