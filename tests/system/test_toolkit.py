from __future__ import annotations

import pytest

from hybridperf.system.toolkit import visible_gpus

_NAMES = [["GPU-aaa1", "MIG-111"], ["GPU-aab2"], ["GPU-ccc3"]]


@pytest.mark.parametrize(
    ("setting", "gpus"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2, 0", [2, 0]),
        ("0,7,1", [0]),
        ("1,1", []),
        ("GPU-aab2", [1]),
        ("GPU-aa", []),
        ("MIG-111,GPU-c", [0, 2]),
        ("nonsense", []),
    ],
)
def test_visible_gpus_follow_the_rules_of_cuda(
    setting: str | None, gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)

    assert visible_gpus(_NAMES) == gpus
