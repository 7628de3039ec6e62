"""What a ruleset demands of the lines with one key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hybridperf.findings import Severity
from hybridperf.rules.mlperf.constraints import Constraints, parse_constraints
from hybridperf.rules.mlperf.formula import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Demand", "Within", "parse_demand"]


@dataclass(frozen=True, slots=True)
class Within:
    """The longest time since the earliest line with another key, by division, in minutes."""

    of: str
    minutes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand on one key; an empty one allows everything."""

    key: str
    least: int = 0  #: number of lines
    most: int | None = None  #: number of lines; one may be repeated with the same value
    instead: tuple[str, ...] = ()  #: other keys, any of which will do
    value: Constraints = field(default_factory=dict)  #: for every value
    reached: Constraints = field(default_factory=dict)  #: for at least one value
    metadata: Mapping[str, Constraints] = field(default_factory=dict)  #: of every line, by name
    first_metadata: Mapping[str, Constraints] = field(default_factory=dict)  #: of the first line
    metadata_any: tuple[str, ...] = ()  #: names, one of which every line has
    metadata_if: Mapping[str, Constraints] = field(default_factory=dict)  #: where the name occurs
    metadata_with: Mapping[str, str] = field(default_factory=dict)  #: name -> name it comes with
    covers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: metadata name -> its values on all lines, each once
    severity: Severity = Severity.ERROR  #: of its violations
    after: tuple[str, ...] = ()  #: keys that occur before every line with this one
    before: tuple[str, ...] = ()  #: keys that do not
    within: Within | None = None
    names: tuple[str, ...] = ()  #: other keys whose values its formulas use

    @property
    def is_simple(self) -> bool:
        """Tell whether the metadata must have names, with any values, and nothing else."""
        others = self.first_metadata or self.metadata_any or self.metadata_if
        return not others and not any(self.metadata.values())

    @property
    def lasting(self) -> Demand | None:
        """Return the part that holds even if a later group demands something else of the key."""
        if not (self.reached or self.covers or self.instead):
            return None
        needed = self if self.instead else replace(self, least=0)
        return Demand(
            self.key,
            needed.least,
            instead=self.instead,
            reached=self.reached,
            covers=self.covers,
            severity=self.severity,
            names=self.names,
        )


_OCCURS: Final[Mapping[str, tuple[int, int | None]]] = {
    "exactly_one": (1, 1),
    "at_least_one": (1, None),
    "at_most_one": (0, 1),
}
_LISTS: Final = ("or", "metadata_any", "after", "before")
_LIMITS: Final = ("value", "reached")
_BY_NAME: Final = ("metadata", "first_metadata", "metadata_if")


def parse_demand(key: str, asked: object) -> Demand:
    """Parse the demand on ``key`` in a ruleset.

    Raises:
        ValueError: if it is none; the message names what is wrong.
    """
    if not isinstance(asked, dict):
        raise ValueError(f"{asked!r:.80}, which is not a table")  # noqa: TRY004 - a file's content, not an argument
    fields: dict[str, Any] = {}
    for name, given in asked.items():
        fields |= _field(name, given)
    tables = [fields.get("value", {}), fields.get("reached", {})]
    for name in _BY_NAME:
        tables += fields.get(name, {}).values()
    return Demand(key, **fields, names=tuple(sorted(_names(tables))))


def _field(name: str, given: Any) -> dict[str, Any]:
    if name == "occurs":
        if isinstance(given, int) and given > 0:
            return {"least": given}
        if given not in _OCCURS:
            known = ", ".join(_OCCURS)
            raise ValueError(f"occurs = {given!r:.40}, which is neither a number nor of {known}")
        least, most = _OCCURS[given]
        return {"least": least, "most": most}
    if name in _LISTS:
        return {"instead" if name == "or" else name: tuple(_texts(name, given))}
    if name in _LIMITS:
        return {name: parse_constraints(given)}
    if name in _BY_NAME:
        return {name: {each: parse_constraints(table) for each, table in given.items()}}
    match name, given:
        case "metadata_with", dict():
            return {"metadata_with": given}
        case "covers", dict():
            return {"covers": {each: tuple(_expanded(texts)) for each, texts in given.items()}}
        case "severity", "error" | "warning":
            return {"severity": Severity(given)}
        case "within", {"of": str() as of, "minutes": dict() as minutes}:
            return {"within": Within(of, minutes)}
    raise ValueError(f"{name} = {given!r:.40}, which is no demand")


def _texts(name: str, given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{name} = {given!r:.40}, which is not a list of keys")
    return texts


def _names(tables: Iterable[Constraints]) -> set[str]:
    formulas = [table["holds"] for table in tables if "holds" in table]
    return {name for text in formulas for name in names_in(text)} - {"value", "position"}


def _expanded(patterns: list[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from _spelled_out(pattern)


def _spelled_out(pattern: str) -> Iterator[str]:
    """Yield the expansions of ``{a,b}`` and ``{1..3}`` in ``pattern``."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        yield pattern
        return
    choice, _, tail = rest.partition("}")
    first, dots, last = choice.partition("..")
    words = map(str, range(int(first), int(last) + 1)) if dots else iter(choice.split(","))
    ends = list(_spelled_out(tail))
    yield from (f"{head}{word}{end}" for word in words for end in ends)
