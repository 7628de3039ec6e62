"""The verification levels in docs/trust.md are those of the rules."""

from __future__ import annotations

from pathlib import Path

from hybridperf.rules.levels import LEVELS

PAGE = Path(__file__).parents[2] / "docs/trust.md"


def test_the_page_has_the_levels_as_the_rules_state_them() -> None:
    rows = [f"| *{level.name}* | {level.requires} | {level.protects_against} |" for level in LEVELS]

    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")
