"""Read the TOML of a ruleset, merged with that of the rulesets it extends."""

from __future__ import annotations

import copy
import functools
import tomllib
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "known_rulesets", "merged_table"]

FOLDER: Final = Path(__file__).parents[1] / "rulesets"
_TABLES: Final = {
    "name", "source", "extends", "untested", "benchmarks", "group", "benchmark", "strict",
}  # fmt: skip

Table = dict[str, Any]


def known_rulesets() -> list[str]:
    """Return the names of all rulesets, including this suite's."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def merged_table(text: str) -> Table:
    """Parse the ruleset ``text`` and merge it into the ruleset that it extends, if any.

    Raises:
        ValueError: if it is not TOML, extends no known ruleset, or has an unknown table.
    """
    table = tomllib.loads(text)
    if unknown := sorted(set(table) - _TABLES):
        raise ValueError(f"{unknown[0]!r:.40}, which is not part of a ruleset")
    if "extends" not in table:
        return _merge({}, table)
    return _merge(copy.deepcopy(_of_name(str(table["extends"]))), table)


@functools.cache
def _of_name(name: str) -> Table:
    if name not in [*known_rulesets(), "base/mlperf-training"]:
        raise ValueError(f"extends = {name!r:.80}, which is no known ruleset")
    return merged_table((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _merge(base: Table, table: Table) -> Table:
    groups = base.get("group", [])
    for group in table.get("group", []):
        _add(groups, group)
    strict = base.get("strict", {}).get("rules", {}) | table.get("strict", {}).get("rules", {})
    for removed in table.get("strict", {}).get("remove", []):
        del strict[removed]
    return {
        **{name: table.get(name, base.get(name)) for name in ("name", "source", "benchmarks")},
        "untested": table.get("untested", False),
        "group": groups,
        "benchmark": base.get("benchmark", {}) | table.get("benchmark", {}),
        "strict": {"rules": strict},
    }


def _add(groups: list[Table], group: Table) -> None:
    """Merge ``group`` into the one of ``groups`` with the same ``when``, or append it."""
    if unknown := set(group) - {"when", "keys", "once", "remove", "same_as", "join"}:
        raise ValueError(f"{min(unknown)!r:.40}, which is not part of a group")
    when = group.get("when")
    if not isinstance(when, dict):
        raise ValueError("a group without 'when'")  # noqa: TRY004 - a file's content, not an argument
    found = next((each for each in groups if each["when"] == when), None)
    if found is None:
        found = {"when": when, "keys": {}}
        groups.append(found)
    if "same_as" in group:
        like = next((each for each in groups if each["when"] == group["same_as"]), None)
        if like is None:
            raise ValueError(f"same_as = {group['same_as']!r:.200}, which no group is for")
        found["keys"] = copy.deepcopy(like["keys"])
    for key in group.get("remove", []):
        if key not in found["keys"]:
            raise ValueError(f"remove = {key!r:.40}, which the group does not demand")
        del found["keys"][key]
    found["keys"] |= {key: {"occurs": "exactly_one"} for key in group.get("once", [])}
    for key, asked in group.get("keys", {}).items():
        if isinstance(asked, dict) and asked.pop("extends", False):
            found["keys"][key] = found["keys"].get(key, {}) | asked
        else:
            found["keys"][key] = asked
    if "join" in group:
        found["join"] = group["join"]
