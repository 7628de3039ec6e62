"""``hybridperf``, as a process of its own, with what tests cannot wait for left out.

``python -m tests.run.driver <arguments of hybridperf>``. The environment may name a folder of
tasks (TASKS), the seed of every run (SEED), limits of time that take the place of the task's
(LIMITS, as JSON), the model of this node's processor (PROCESSOR), a digit that its code's hash is
made of (CODE), and how long other nodes' files and machines are waited for (SHARED_S, LOST_S).
Faults (FAULT and others) reach trainers in the sandbox too, and the files where they note them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf import cli
from hybridperf.cli.commands import run as command
from hybridperf.run import (
    launcher,
    node_follower,
    nodes,
    provenance,
    request,
    rescore,
    run_set,
    sandbox,
    spec,
)
from hybridperf.run.sandbox import policy_of
from hybridperf.system.describe import describe
from hybridperf.tasks import registry
from hybridperf.tasks.registry import read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hybridperf.run.spec import RunSpec
    from hybridperf.system.landlock import Policy
    from hybridperf.tasks.task import Task


FAULTS: Final = {
    "CHEAT",
    "CHEAT_NAME",
    "CHEAT_PORT",
    "CHEAT_SOCKET",
    "FAULT",
    "FAULT_ONCE",
    "FAULT_RANK",
    "DAEMON",
    "SEEN",
    "VICTIM",
}
PROCESSOR: Final = "host_processor_model_name"


def with_limits(read_task: Callable[[Path], Task]) -> Callable[[Path], Task]:
    """Return a function that reads a task with other limits of time, under the same SHA-256."""
    changes = json.loads(os.environ.get("LIMITS") or "{}")

    def read(path: Path) -> Task:
        task = read_task(path)
        return dataclasses.replace(task, limits=dataclasses.replace(task.limits, **changes))

    return read


def with_notes(policy_of: Callable[..., Policy]) -> Callable[..., Policy]:
    """Return a function that lets the sandbox's processes write the files of their notes too."""
    names = "FAULT_ONCE", "DAEMON", "SEEN"
    notes = [Path(os.environ[name]) for name in names if os.environ.get(name)]

    def wider(run: RunSpec, *, writable: Iterable[Path], **keywords: Any) -> Policy:
        return policy_of(run, writable=(*writable, *notes), **keywords)

    return wider


def one_hash(_: Path) -> str:
    """Return the same hash of all code: whoever runs the tests may be editing it."""
    return os.environ.get("CODE", "0") * 64


def main() -> None:
    """Carry out the command of ``sys.argv``, with what the environment asks for replaced."""
    shared_s = float(os.environ.get("SHARED_S") or node_follower._SHARED_S)
    lost_s = int(os.environ.get("LOST_S") or nodes.LOST_S)
    replacements: list[tuple[object, str, object]] = [
        (run_set, "describe_with_torch", describe),
        (provenance, "_folder_sha256", one_hash),
        (request, "read_task", with_limits(read_task)),
        (spec, "read_task", with_limits(read_task)),
        (node_follower, "_SHARED_S", shared_s),
        (nodes, "LOST_S", lost_s),
        (node_follower, "LOST_S", lost_s),
        (launcher, "policy_of", with_notes(policy_of)),
        (rescore, "policy_of", with_notes(policy_of)),
        (sandbox, "_VARIABLES", sandbox._VARIABLES | FAULTS),
        (registry, "_ROOT", Path(os.environ.get("TASKS") or registry._ROOT)),
    ]
    if model := os.environ.get("PROCESSOR"):
        replacements.append(
            (command, "describe", lambda nodes: describe(nodes=nodes) | {PROCESSOR: model})
        )
    if os.environ.get("SEED"):
        replacements.append((run_set, "draw_seed", lambda *_: (int(os.environ["SEED"]), {})))
    for module, name, replacement in replacements:
        setattr(module, name, replacement)
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
