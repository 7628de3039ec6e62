"""Start the ranks of a measurement, one thread each, and read what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_ranks"]


def run_ranks(
    module: str, folder: Path, ranks: int, item: str, **environment: str
) -> list[dict[str, Any]]:
    """Run ``-m module item folder`` on every rank; return what each one left, in rank order."""
    starter = [sys.executable]
    if ranks > 1:
        starter += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    threads = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*starter, "-m", module, item, str(folder)],
        env=os.environ | threads | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{item}: {done.stderr[:8000]}"
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(ranks)]
