"""Print the tensors of each task's reference model, the contents of ``tasks/tensors.toml``.

``python -m hybridperf_reference.tensors > suite/hybridperf/tasks/tensors.toml``
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import torch

from hybridperf.rules.evidence import Tensors, tensors_of
from hybridperf.tasks.registry import find_task, task_names
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["main", "reference_tensors"]

_HEAD: Final = """\
# Names and shapes of the tensors of each task's model, by task and version. Written by
# python -m hybridperf_reference.tensors; a task's own file would change its hash.
"""


def reference_tensors(task: Task) -> Tensors:
    """Return the summary of all tensors in the reference's weights of ``task``."""
    with torch.device("meta"):
        state = Stage(chain_of(task, seed=0).units).state_dict()
    return tensors_of({name: tensor.shape for name, tensor in state.items()})


def main() -> None:
    """Print the table of every task of the suite."""
    lines = [_HEAD]
    for task in map(find_task, task_names()):
        found = reference_tensors(task)
        lines.append(f'["{task.name}".{task.version}]')
        lines += [f"count = {found.count}", f"values = {found.values}"]
        lines += [f'sha256 = "{found.sha256}"', ""]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main()
