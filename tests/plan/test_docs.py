from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.plan.tables import constraint_table, field_table, schedule_table

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs/plans.md"


@pytest.mark.parametrize("table", [field_table, schedule_table, constraint_table])
def test_the_page_of_plans_has_the_tables_of_the_registries(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"paste this into {PAGE}:\n{table()}"
