"""The tables of docs/plans.md are those of the registries and of projections."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.plan.constraints import CONSTRAINTS
from hybridperf.plan.fields import FIELDS
from hybridperf.plan.plan import PRESETS
from hybridperf.plan.schedules import SCHEDULES
from hybridperf.projection.search import Work, divisors
from hybridperf.projection.systems import find_system
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE = Path(__file__).parents[2] / "docs/plans.md"


def _field_table() -> str:
    """Return the table of a plan's fields as Markdown."""
    rows = (
        (
            f"`{field.name}`",
            ", ".join(f"`{word}`" if word in field.words else word for word in field.values),
            field.metadata.default or f"`{field.word(field.default)}`",
            field.metadata.meaning,
        )
        for field in FIELDS.values()
    )
    return _markdown(("key", "values", "default", "meaning"), rows)


def _schedule_table() -> str:
    """Return the table of schedules as Markdown."""
    rows = (
        (
            f"`{each.name}`",
            each.meaning,
            f"{each.stages} or more" if each.stages_vary else f"{each.stages}",
            each.microbatches if each.microbatches == "any" else f"`{each.microbatches}`",
            f"`{each.idle_share.text}`",
            f"`{each.activations.text}`",
            each.source,
        )
        for each in SCHEDULES.values()
    )
    head = ("schedule", "order", "stages a rank", "m", "idle share", "activations", "source")
    return _markdown(head, rows)


def _preset_table() -> str:
    """Return the table of presets as Markdown."""
    rows = (
        (
            f"`{each.name}({', '.join(each.parameters)})`",
            f"`{each.text}`",
            each.meaning,
            each.source,
        )
        for each in PRESETS.values()
    )
    return _markdown(("preset", "plan", "meaning", "source"), rows)


def _constraint_table() -> str:
    """Return the table of constraints as Markdown."""
    return _markdown(("refused", "why"), ((each.refused, each.why) for each in CONSTRAINTS))


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


#: fields of a group of ranks, by what the page calls it
GROUPS: Final = {
    "`dp`": "dp={}",
    "`tp`": "tp={}",
    "`sp`": "tp={},sp=on",
    "`2d`": "tp={},tensor=2d",
    "`2.5d`": "tp={},tensor=2.5d",
    "`3d`": "tp={},tensor=3d",
    "`cp`": "cp={}",
}


def _group_table() -> str:
    """Return the table of steps by what all ranks divide, and a sentence of the fastest."""
    rows, fastest = [], Counter[str]()
    for task, system, ranks in product(
        ("bert_large/cluster", "vit/cluster"), ("h100-sxm", "a100-pcie"), (4, 8, 16, 64)
    ):
        steps_s = {name: _step_s(task, system, text.format(ranks)) for name, text in GROUPS.items()}
        of_replicas_s = steps_s["`dp`"]
        best = min((name for name in steps_s if name != "`dp`"), key=lambda name: steps_s[name])
        fastest[best] += 1
        fastest["`dp`"] += of_replicas_s < steps_s[best]
        cells = (
            "-" if step_s == math.inf else f"{step_s / of_replicas_s:.2f}"
            for name, step_s in steps_s.items()
            if name != "`dp`"
        )
        places = (f"`{task}`", f"`{system}`", f"{ranks}", f"{of_replicas_s:.3f} s")
        rows.append((*places, *cells, best))
    head = ("task", "system", "t", *GROUPS, "fastest group")
    replicas = fastest.pop("`dp`")
    groups = ", ".join(f"{name} in {count}" for name, count in fastest.most_common())
    sentence = f"Of {len(rows)} rows, replicas are fastest in {replicas}; of groups, {groups}."
    if replicas == len(rows):
        sentence += " So no such group is needed to train these models faster."
    return f"{_markdown(head, rows)}\n\n{sentence}"


def _step_s(task: str, system: str, text: str) -> float:
    """Return the projected step in the fewest micro-batches that fit; infinity if none do."""
    found, node, units = find_task(task), find_system(system), load_units(task)
    work = Work.of_task(found, units, node.timing(units, "bf16"), node.network)
    plan = ParallelPlan.parse(f"{text},precision=bf16")
    config = found.training_config(plan.ranks, "gpu", stages=units.most_stages)
    for microbatches in divisors(work.global_batch_size // plan.dp):
        if not (each := replace(plan, microbatches=microbatches)).check(config):
            projection = work.project(each)
            if max(projection.memory_bytes) <= node.memory_bytes:
                return projection.step_s
    return math.inf


@pytest.mark.parametrize(
    "table", [_field_table, _schedule_table, _preset_table, _constraint_table, _group_table]
)
def test_tables_in_the_docs_are_generated(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"paste this into {PAGE}:\n{table()}"
