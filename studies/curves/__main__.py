"""Project the throughput of the full-size models on 8 to 4,096 devices.

``python -m studies.curves`` prints a table in Markdown for each model.
"""

from __future__ import annotations

import argparse
from typing import Final

from hybridperf.cli.printing import print_line
from studies.curves.ratios import project_on

PRECISION: Final = "bf16"
BATCH: Final = 65_536  #: global batch size that optimizers for large batches still converge with
#: largest micro-batch by task; gradients of more samples are accumulated
_SAMPLES: Final = {
    "resnet50/cluster": 128,
    "resnet152/cluster": 64,
    "vgg/cluster": 64,
    "vit/cluster": 64,
    "bert_large/cluster": 16,
}
_SYSTEMS: Final = ("a100-pcie", "a100-sxm", "h100-sxm", "b200")
_DEVICES: Final = tuple(2**power for power in range(3, 13))


def table(task: str) -> str:
    """Return the table of a task: samples/s, and efficiency compared with one device, by system."""
    alone = {system: _samples_per_s(task, system, 1) for system in _SYSTEMS}
    lines = [f"| {' | '.join(('devices', *_SYSTEMS))} |", f"|{'--:|' * (1 + len(_SYSTEMS))}"]
    for devices in _DEVICES:
        cells = [f"{devices:,}"]
        for system in _SYSTEMS:
            rate = _samples_per_s(task, system, devices)
            cells.append(f"{rate:,.0f} ({rate / devices / alone[system]:.0%})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _samples_per_s(task: str, system: str, devices: int) -> float:
    count = max(1, BATCH // devices // _SAMPLES[task])
    plan = f"dp={devices},microbatches={count}"
    return project_on(system, task, PRECISION, plan, BATCH).samples_per_s


def main() -> None:
    """Print the table of each model, projected, not measured."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for task, samples in _SAMPLES.items():
        print_line(f"{task}: samples/s in {PRECISION}, micro-batches of up to {samples}\n")
        print_line(f"{table(task)}\n")


if __name__ == "__main__":
    main()
