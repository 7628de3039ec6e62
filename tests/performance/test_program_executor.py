"""What our executor of programs costs beside torch's 1F1B, and what it gains by delay.

Both sides are our trainer, on the same ranks and in turn. At staleness 0 one executes our programs
and the other `torch.distributed.pipelining.Schedule1F1B`: everything else is the same, and so are
the weights. Above one we take longer. Between steps without a flush and with one, weights are the
same too; between delayed and synchronous plans only the gradients of the first step are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.performance.paired_cases import OF_PROGRAMS
from tests.performance.paired_report import run_comparison

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_program_executor(benchmark: Any, tmp_path: Path, name: str) -> None:
    run_comparison(benchmark, tmp_path, name)
