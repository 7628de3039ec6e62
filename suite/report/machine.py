"""What a result ran on, read from a system description of unknown origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.scores.scaling.devices import device_count, whole_fact
from suite.systems.show import show

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["device_count", "devices", "machine_rows"]

_MOST_ROWS: Final = 60
_MOST_CHARACTERS: Final = 500


def machine_rows(description: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """Return label and value of what is known; MLPerf's own fields where there are only those."""
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
    """Return the devices of the whole system in a few words: accelerators before cores."""
    facts, number = description or {}, device_count(description)
    model = _text(facts, "host_processor_model_name")
    if number is None:
        return model
    if whole_fact(facts, "accelerators_per_node"):
        return _counted(number, _text(facts, "accelerator_model_name"), "accelerator")
    return _counted(number, f"{model} core".strip(), "core")


def _counted(number: int, name: str, otherwise: str) -> str:
    return f"{number:,} \N{MULTIPLICATION SIGN} {name or otherwise}"


def _text(facts: Mapping[str, object], key: str) -> str:
    value = facts.get(key)
    return value.strip()[:_MOST_CHARACTERS] if isinstance(value, str) else ""
