"""``hybridperf``, as a process of its own, with what tests cannot wait for left out.

``python -m tests.runs.driver <arguments of hybridperf>``. The environment may name a folder of
tasks (TASKS), and a launch of rank 0 alone without torchrun (QUICK), which takes seconds less.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli import main
from suite.runs import attempt, launch, provenance, series
from suite.systems.describe import describe
from suite.tasks import registry

if TYPE_CHECKING:
    import subprocess

    from suite.runs.spec import RunSpec


def launch_rank_0(spec: RunSpec) -> subprocess.Popen[bytes]:
    """Start the trainer's rank 0."""
    return launch._start(spec, [f"{spec.trainer}.train"], ranks=1)


if __name__ == "__main__":
    series.describe_with_torch = describe
    provenance._folder_sha256 = lambda _: "0" * 64  # whoever runs tests may be editing the code
    if tasks := os.environ.get("TASKS"):
        registry._ROOT = Path(tasks)
    if os.environ.get("QUICK"):
        attempt.launch = launch_rank_0
    sys.exit(main())
