"""``hybridperf``, as a process of its own, with what tests cannot wait for left out.

``python -m tests.runs.driver <arguments of hybridperf>``. The environment may name a folder of
tasks (TASKS), a launch of one rank a node without torchrun (QUICK), which takes seconds less, the
seed of every run (SEED), the model of this node's processor (PROCESSOR) and a digit that its code's
hash is made of (CODE). A process that is gone is missed after two seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suite.cli import main
from suite.runs import attempt, follower, heartbeat, launch, provenance, series
from suite.systems.describe import describe
from suite.tasks import registry

if TYPE_CHECKING:
    import subprocess

    from suite.runs.spec import RunSpec


PROCESSOR: Final = "host_processor_model_name"


def launch_one_rank(spec: RunSpec, node: int = 0) -> subprocess.Popen[bytes]:
    """Start one rank of the trainer on this node, of which there are as many as ranks."""
    os.environ |= {"RANK": str(node), "WORLD_SIZE": str(spec.nodes)}
    return launch._start(spec, [f"{spec.trainer}.train"], ranks=1, node=node)


def one_hash(_: Path) -> str:
    """Return the same hash of all code: whoever runs the tests may be editing it."""
    return os.environ.get("CODE", "0") * 64


if __name__ == "__main__":
    replacements: list[tuple[object, str, object]] = [
        (series, "describe_with_torch", describe),
        (provenance, "_folder_sha256", one_hash),
        (heartbeat, "_LOOKS", 4),
        (registry, "_ROOT", Path(os.environ.get("TASKS") or registry._ROOT)),
    ]
    if os.environ.get("QUICK"):
        replacements += [(room, "launch", launch_one_rank) for room in (attempt, follower)]
    if model := os.environ.get("PROCESSOR"):
        replacements.append((follower, "describe", lambda: describe() | {PROCESSOR: model}))
    if os.environ.get("SEED"):
        replacements.append((series, "_seed", lambda *_: int(os.environ["SEED"])))
    for module, name, replacement in replacements:
        setattr(module, name, replacement)
    sys.exit(main())
