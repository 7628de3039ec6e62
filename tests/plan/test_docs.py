"""The tables of docs/plans.md are those of the registries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.plan.constraints import CONSTRAINTS
from hybridperf.plan.fields import FIELDS
from hybridperf.plan.plan import PRESETS
from hybridperf.plan.schedules import SCHEDULES

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


@pytest.mark.parametrize("table", [_field_table, _schedule_table, _preset_table, _constraint_table])
def test_tables_in_the_docs_are_generated_from_the_registries(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"paste this into {PAGE}:\n{table()}"
