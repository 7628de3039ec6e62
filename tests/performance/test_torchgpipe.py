"""Our GPipe plan beside torchgpipe 0.0.7, which has no successor for sequences of modules.

The same model, cut at the same place into two stages, and the same micro-batches. Ours are two
processes with one thread each, which send activations through gloo. torchgpipe's are two threads of
one process that share memory; their forward passes share Python's lock, and on a processor autograd
runs all backward passes in one thread, so these do not overlap. Time by the wall compares what two
cores make of both designs; processor time, all ranks and threads, what each design computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.performance.paired_cases import OF_TORCHGPIPE
from tests.performance.paired_report import run_comparison

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", OF_TORCHGPIPE)
def test_torchgpipe(benchmark: Any, tmp_path: Path, name: str) -> None:
    pytest.importorskip("torchgpipe", reason="torchgpipe is not installed")
    run_comparison(benchmark, tmp_path, name)
