"""Our ``zero=1`` beside fairscale 0.4.13's OSS: two replicas share out the state of AdamW.

With OSS, DDP averages whole gradients, and each rank broadcasts the parameters that it updated.
Ours is FSDP2, which reduces every unit's gradients to shards and gathers its parameters in the next
forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.performance.paired_cases import OF_FAIRSCALE
from tests.performance.paired_report import run_comparison

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", OF_FAIRSCALE)
def test_fairscale_oss(benchmark: Any, tmp_path: Path, name: str) -> None:
    pytest.importorskip("fairscale", reason="fairscale is not installed")
    run_comparison(benchmark, tmp_path, name)
