"""``hybridperf``, as a process of its own, with what tests cannot wait for left out.

``python -m tests.runs.driver <arguments of hybridperf>``. The environment may name a folder of
tasks (TASKS), a launch of rank 0 alone without torchrun (QUICK), which takes seconds less, and the
seed of every run (SEED).
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


def no_hash(_: Path) -> str:
    """Return the same hash of all code: whoever runs the tests may be editing it."""
    return "0" * 64


if __name__ == "__main__":
    replacements: list[tuple[object, str, object]] = [
        (series, "describe_with_torch", describe),
        (provenance, "_folder_sha256", no_hash),
        (registry, "_ROOT", Path(os.environ.get("TASKS") or registry._ROOT)),
    ]
    if os.environ.get("QUICK"):
        replacements.append((attempt, "launch", launch_rank_0))
    if os.environ.get("SEED"):
        replacements.append((series, "_seed", lambda *_: int(os.environ["SEED"])))
    for module, name, replacement in replacements:
        setattr(module, name, replacement)
    sys.exit(main())
