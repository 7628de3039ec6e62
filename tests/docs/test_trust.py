"""The ladder in docs/trust.md is that of the rules."""

from __future__ import annotations

from pathlib import Path

from hybridperf.rules.ladder import RUNGS

PAGE = Path(__file__).parents[2] / "docs/trust.md"


def test_the_page_has_the_rungs_as_the_rules_state_them() -> None:
    rows = [f"| *{rung.name}* | {rung.takes} | {rung.stops} |" for rung in RUNGS]

    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")
