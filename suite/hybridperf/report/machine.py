"""Summarise the system of a result from its untrusted system description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.system.counts import accelerators_per_node, device_count
from hybridperf.system.show import show

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["devices", "machine_rows"]

_MOST_ROWS: Final = 60
_MOST_CHARACTERS: Final = 500


def machine_rows(description: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """Return (label, value) pairs of the known facts, else of MLPerf's fields."""
    if description is None:
        return []
    try:
        rows = [(label, str(value)) for label, value in show(description)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        rows = [
            (label.replace("_", " "), str(value))
            for label, value in description.items()
            if isinstance(value, str | int | float) and value != ""
        ]
    return [(label, value[:_MOST_CHARACTERS]) for label, value in rows[:_MOST_ROWS]]


def devices(description: Mapping[str, object] | None) -> str:
    """Return a short description of the system's accelerators, or else of its processors."""
    facts, number = description or {}, device_count(description)
    model = _text(facts, "host_processor_model_name")
    if number is None:
        return model
    if accelerators_per_node(facts):
        return _counted(number, _text(facts, "accelerator_model_name"), "accelerator")
    return _counted(number, f"{model} core".strip(), "core")


def _counted(number: int, name: str, otherwise: str) -> str:
    return f"{number:,} \N{MULTIPLICATION SIGN} {name or otherwise}"


def _text(facts: Mapping[str, object], key: str) -> str:
    value = facts.get(key)
    return value.strip()[:_MOST_CHARACTERS] if isinstance(value, str) else ""
