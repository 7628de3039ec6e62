"""Claims as data: a file of claims, the value that a claim states, and its check.

A file of claims is TOML: a table ``[source]``, and a table ``[[claim]]`` with a ``[claim.check]``
for each claim (docs/claims.md). It may come from anyone: it is read within limits, and nothing in
it is executed.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.score.metrics import METRICS
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.schema import build
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, NUMBER_CAP, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = [
    "SECONDS",
    "Check",
    "Claim",
    "ClaimSource",
    "ClaimedMetric",
    "ClaimedValue",
    "CompareCheck",
    "CountCheck",
    "ExpressionCheck",
    "NoCheck",
    "PlaceCheck",
    "ProjectCheck",
    "ScaleCheck",
    "ScoreCheck",
    "parse_value",
    "read_claims",
]

#: metric of a comparison; ``saving`` is 1 less the ratio of times
ClaimedMetric = Literal["time", "saving", "end_to_end_throughput", "steady_throughput", "samples"]
#: a metric of `hybridperf scale`
EfficiencyMetric = Literal["time_to_train", "end_to_end_throughput", "steady_throughput"]


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """A column of `hybridperf score`, of one result."""

    result: str  #: path of the result below ``--root``
    metric: str


@dataclass(frozen=True, slots=True)
class CompareCheck:
    """Results compared with bases of the same task, by the test of `hybridperf compare`."""

    results: tuple[str, ...]
    bases: tuple[str, ...] = ()
    where: dict[str, object] = field(default_factory=dict)
    #: column of `hybridperf score` -> value: all results with these values are bases, too
    metrics: tuple[ClaimedMetric, ...] = ("time",)  #: the definitions that the source leaves open
    best: bool = False  #: a superlative: no base may be better


@dataclass(frozen=True, slots=True)
class ScaleCheck:
    """A scaling efficiency of a result from a smaller one."""

    result: str
    base: str
    metrics: tuple[EfficiencyMetric, ...]  #: the definitions that the source leaves open


@dataclass(frozen=True, slots=True)
class PlaceCheck:
    """The place of a result among all results that match a filter."""

    result: str
    where: dict[str, object]  #: column of `hybridperf score` -> value


@dataclass(frozen=True, slots=True)
class CountCheck:
    """The number of organisations or results that match a filter."""

    what: Literal["organisations", "results"]
    where: dict[str, object] = field(default_factory=dict)
    names: tuple[str, ...] = ()  #: organisations, where the logs of a round are not at hand


@dataclass(frozen=True, slots=True)
class ProjectCheck:
    """The throughput of a plan over a base plan, on a grid of the parameters left open.

    Each list is one axis of the grid: a claim holds where some of its points have the value.
    """

    tasks: tuple[str, ...]
    plans: tuple[str, ...]
    bases: tuple[str, ...]
    systems: tuple[str, ...]
    batches: tuple[int, ...]  #: samples on a device
    precisions: tuple[str, ...]
    metric: Literal["speedup", "gain", "memory_saving"] = "gain"
    #: ratio of throughputs, the ratio less 1, or the share by which the largest memory is smaller
    strongest: tuple[str, ...] = ()  #: bases to show besides, such as overlapped data parallelism
    base_systems: tuple[str, ...] = ()  #: systems of the bases; (): the system of the plan
    alternatives: tuple[str, ...] = ()  #: plans to show besides, such as a delay without a pipeline
    mean_of_tasks: bool = False  #: whether the claim is a mean over the tasks: a series of models
    note: str = ""  #: what the tasks, plans and systems stand for, where the source names others


@dataclass(frozen=True, slots=True)
class ExpressionCheck:
    """Arithmetic on constants with their sources, and on facts of the suite's tasks and devices."""

    formula: str
    constants: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  #: constant -> where it is published
    cases: dict[str, dict[str, float]] = field(default_factory=dict)
    #: further constants by the name of a case: what the source leaves open
    varies: str = "case"  #: what the names of the cases say
    implies: dict[str, str] = field(default_factory=dict)  #: further figures, by formula


@dataclass(frozen=True, slots=True)
class NoCheck:
    """What would have to be published before the claim can be checked."""

    missing: str


Check: TypeAlias = (
    ScoreCheck
    | CompareCheck
    | ScaleCheck
    | PlaceCheck
    | CountCheck
    | ProjectCheck
    | ExpressionCheck
    | NoCheck
)

_KINDS: Final[dict[str, type[Check]]] = {
    "score": ScoreCheck,
    "compare": CompareCheck,
    "scale": ScaleCheck,
    "place": PlaceCheck,
    "count": CountCheck,
    "project": ProjectCheck,
    "expression": ExpressionCheck,
    "none": NoCheck,
}


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Where the claims of a file were published."""

    title: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedValue:
    """The value that a claim states: the interval of values that round to it."""

    text: str  #: as stated
    #: about: trailing zeros are no digits; up to: the largest of all values; no worse: the result
    #: compared is not worse than its base, whatever the value
    bound: Literal[
        "equal", "about", "range", "at least", "over", "at most", "under", "up to", "no worse"
    ]
    low: float  #: as stated; -inf if the value has no lower bound
    high: float
    least: float  #: lower bound of the values that round to the stated value
    most: float  #: upper bound of these values
    unit: str
    decimals: int  #: digits after the decimal point, as stated

    def accepts(self, value: float) -> bool:
        """Tell whether ``value`` rounds to what is stated, or is within the bound."""
        if self.bound == "over":
            return value > self.low
        return value < self.high if self.bound == "under" else self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim."""

    id: str
    statement: str  #: verbatim
    source: ClaimSource
    where: str  #: place in the source
    value: str  #: as stated, such as ``94 %``, ``up to 79.2 %`` or ``5-11 %``
    check: Check
    note: str = ""  #: what a reader of the verdict should know of the source
    path: str = ""  #: file that states the claim

    @property
    def stated(self) -> ClaimedValue | None:
        """Return what `value` states; None for a claim without a check."""
        return None if isinstance(self.check, NoCheck) else parse_value(self.value)

    @property
    def results(self) -> tuple[str, ...]:
        """Return the paths of the results that the check names."""
        return _paths_of(self.check)


# The value

_NUMBER: Final = r"-?[0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?(?:e[0-9]{1,2})?"
_VALUE: Final = re.compile(
    r"(?:(?P<word>about|around|approximately|at least|at most|over|more than|above|under|"
    r"less than|below|up to) )?"
    rf"(?P<low>{_NUMBER})(?: ?%)?(?: ?(?:-|to|\u2013) ?(?P<high>{_NUMBER}))?"
    r"(?: ?(?P<unit>[^0-9,.\s-].{0,40}))?"
)
_WORDS: Final = {
    "around": "about",
    "approximately": "about",
    "more than": "over",
    "above": "over",
    "less than": "under",
    "below": "under",
}
_NO_WORSE: Final = "no worse"
_EXAMPLES: Final = (
    "a value such as '94 %', '149 s', '2.3x', '5-11 %', 'up to 79.2 %', 'over 100 years', "
    f"'about 2x' or '{_NO_WORSE}'"
)


def parse_value(text: str) -> ClaimedValue:
    """Parse the value of a claim.

    A value stands for all values that round to it: the tolerance is half a unit of the last digit.
    After "about", zeros at the end of a whole number are no digits.

    Raises:
        ValueError: if ``text`` is not a value.
    """
    if text == _NO_WORSE:
        everything = -math.inf, math.inf
        return ClaimedValue(text, _NO_WORSE, *everything, *everything, "", 0)
    match = _VALUE.fullmatch(text)
    if match is None or (match["word"] and match["high"]):
        raise ValueError(f"{text!r}, which is no value")
    word = _WORDS.get(match["word"] or "", match["word"] or "equal")
    about = word == "about"
    low, least, _, decimals = _rounded(match["low"], about=about)
    high, _, most, _ = _rounded(match["high"] or match["low"], about=about)
    if match["high"]:
        word = "range"
        if high <= low:
            raise ValueError(f"{text!r}, which is no range")
    unit = (match["unit"] or "").strip()
    if text.partition(match["low"])[2].lstrip().startswith("%"):
        if unit not in {"", "%"}:
            raise ValueError(f"{text!r}, which has two units")
        unit = "%"
    if word in {"at least", "over"}:
        high = most = math.inf
    if word in {"at most", "under"}:
        low = least = -math.inf
    return ClaimedValue(text, word, low, high, least, most, unit, decimals)  # type: ignore[arg-type]  # the words of _VALUE


def _rounded(text: str, *, about: bool) -> tuple[float, float, float, int]:
    """Return a number, the bounds of what rounds to it, and its digits after the decimal point."""
    number = Decimal(text.replace(",", ""))
    if abs(number) > NUMBER_CAP:
        raise ValueError(f"{text!r}, which is out of range")
    exponent = number.as_tuple().exponent
    if about and number and "." not in text:
        exponent = number.normalize().as_tuple().exponent
    places = int(exponent)
    half = Decimal(5).scaleb(places - 1)
    return float(number), float(number - half), float(number + half), max(0, -places)


# The file

_MOST_CLAIMS: Final = 1000  #: of a file
_MOST_CHARACTERS: Final = 2000  #: of a text
_MOST_ITEMS: Final = 1000  #: of a list
_MOST_POINTS: Final = 20_000  #: of a grid
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_KEYS: Final = ("id", "statement", "where", "value", "note", "check")


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Return the claims of the file at ``path``.

    Raises:
        UserError: exit status 4 if it cannot be read, 2 if it is not a file of claims; the message
            names the key.
    """
    try:
        document = tomllib.loads(read_bounded(path, DOCUMENT_CAP_BYTES).decode())
    except OSError as error:
        remedy = "name a file of claims (docs/claims.md)"
        raise UserError.of(
            *("claims.file", "a file of claims", reason(error), remedy),
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    except RecursionError as error:
        raise _refusal(path, "a TOML file", "tables nested too deep") from error
    except ValueError as error:
        raise _refusal(path, "a TOML file", f"{reason(error):.300}") from error
    return tuple(_claims(path, document))


def _claims(path: Path, document: dict[str, object]) -> Iterator[Claim]:
    _require_known(path, "", document, ("source", "claim"))
    about, rows = document.get("source"), document.get("claim")
    if not isinstance(about, dict):
        raise _refusal(path, "a table [source] with the title of the source", "none")
    _require_known(path, "source", about, ("title", "url"))
    source = build(ClaimSource, about, path=str(path), at="source")
    _require_bounded(path, "source", about)
    if source.url and not source.url.startswith(("https://", "http://")):
        raise _refusal(path, "an address with https:// at 'source.url'", repr(source.url)[:120])
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST_CLAIMS:
        found = f"{len(rows)}" if isinstance(rows, list) else "none"
        raise _refusal(path, f"1 to {_MOST_CLAIMS} tables [[claim]]", found)
    seen = set[str]()
    for number, row in enumerate(rows, 1):
        claim = _claim(path, f"claim.{number}", row, source)
        if claim.id in seen:
            raise _refusal(path, f"an id of its own at 'claim.{number}.id'", claim.id)
        seen.add(claim.id)
        yield claim


def _claim(path: Path, at: str, row: object, source: ClaimSource) -> Claim:
    if not isinstance(row, dict):
        raise _refusal(path, f"a table [[claim]] at {at!r}", repr(row)[:80])
    _require_known(path, at, row, _KEYS)
    _require_bounded(path, at, row)
    check = _check(path, f"{at}.check", row.get("check"))
    facts = {"where": "", **row, "source": dataclasses.asdict(source), "check": {}}
    if isinstance(check, NoCheck):
        facts = {"value": "", **facts}
    claim = build(_ClaimRow, facts, path=str(path), at=at)
    if not _ID.fullmatch(claim.id):
        expected = f"1 to 32 letters, digits, '.', '_' and '-' at '{at}.id'"
        raise _refusal(path, expected, f"{claim.id!r:.80}")
    if not isinstance(check, NoCheck):
        try:
            stated = parse_value(claim.value)
        except (ValueError, ArithmeticError):
            raise _refusal(path, f"{_EXAMPLES} at '{at}.value'", f"{claim.value!r:.80}") from None
        _require_unit(path, f"{at}.value", stated, check)
    return Claim(
        *(claim.id, claim.statement, source, claim.where, claim.value, check, claim.note),
        str(path),
    )


@dataclass(frozen=True, slots=True)
class _ClaimRow:
    """The texts of a table [[claim]]."""

    id: str
    statement: str
    source: dict[str, object]
    where: str
    value: str
    check: dict[str, object]
    note: str = ""


def _check(path: Path, at: str, table: object) -> Check:
    if not isinstance(table, dict):
        kinds = ", ".join(_KINDS)
        raise _refusal(path, f"a table [claim.check] with a kind ({kinds}) at {at!r}", "none")
    stated = dict(table)
    kind = stated.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        expected, found = f"one of {', '.join(_KINDS)} at '{at}.kind'", f"{kind!r:.80}"
        hint = did_you_mean(kind, _KINDS, "correct it") if isinstance(kind, str) else "add it"
        raise _refusal(path, expected, found, hint)
    fields = {each.name: each for each in dataclasses.fields(_KINDS[kind])}
    lists = {name for name, each in fields.items() if str(each.type).startswith("tuple[")}
    one = {_singular(name): name for name in lists if _singular(name) not in fields}
    _require_known(path, at, stated, [*fields, *one])
    _require_bounded(path, at, stated)
    for key, name in one.items():
        if key in stated:
            if name in stated:
                raise _refusal(path, f"one of {key!r} and {name!r} at {at!r}", "both")
            if isinstance(stated[key], list):
                raise _refusal(path, f"one value at '{at}.{key}'", "a list", f"rename it {name!r}")
            stated[name] = [stated.pop(key)]
    check = build(_KINDS[kind], stated, path=str(path), at=at)
    _require_consistent(path, at, check)
    return check


def _singular(name: str) -> str:
    """Return the key for one value of a list, such as ``base`` for ``bases``."""
    return {"bases": "base", "batches": "batch"}.get(name, name.removesuffix("s"))


def _require_consistent(path: Path, at: str, check: Check) -> None:
    """Refuse names of columns, paths and lists that no check could be computed from."""
    if isinstance(check, ScoreCheck):
        numbers = [name for name, each in METRICS.items() if each.kind in {"number", "whole"}]
        if check.metric not in numbers:
            expected = f"a column of 'hybridperf score --columns' with numbers at '{at}.metric'"
            hint = did_you_mean(check.metric, numbers, "choose one of them")
            raise _refusal(path, expected, f"{check.metric!r:.80}", hint)
    if isinstance(check, CompareCheck | PlaceCheck | CountCheck):
        _require_filter(path, f"{at}.where", check.where)
    if isinstance(check, PlaceCheck) and not check.where:
        raise _refusal(path, f"a filter such as {{ round = '2.1' }} at '{at}.where'", "none")
    if isinstance(check, CompareCheck) and not (check.bases or check.where):
        raise _refusal(path, f"a 'base', or a filter 'where', at {at!r}", "neither")
    if isinstance(check, CountCheck) and bool(check.where) == bool(check.names):
        found = "both" if check.names else "neither"
        raise _refusal(path, f"either a filter 'where' or 'names' at {at!r}", found)
    if isinstance(check, CountCheck) and check.names and check.what == "results":
        raise _refusal(path, f"'organisations' at '{at}.what', as names are", "'results'")
    for name in _paths_of(check):
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or ".." in pure.parts or visible(name) != name:
            expected = f"paths below --root, <org>/results/<system>/<benchmark>, at {at!r}"
            raise _refusal(path, expected, f"{name!r:.120}")
    if isinstance(check, ProjectCheck):
        axes = (check.tasks, check.plans, check.bases, check.systems, check.batches)
        bases = max(1, len(check.base_systems)) * (1 + len(check.strongest))
        points = math.prod(map(len, (*axes, check.precisions))) * bases
        if not 0 < points <= _MOST_POINTS:
            expected = f"a grid of 1 to {_MOST_POINTS:,} points at {at!r}"
            raise _refusal(path, expected, f"{points:,}", "shorten its lists")


def _paths_of(check: Check) -> tuple[str, ...]:
    match check:
        case ScoreCheck() | PlaceCheck():
            return (check.result,)
        case CompareCheck():
            return check.results + check.bases
        case ScaleCheck():
            return check.result, check.base
    return ()


def _require_filter(path: Path, at: str, where: Mapping[str, object]) -> None:
    columns = [name for name, each in METRICS.items() if each.kind in {"text", "whole"}]
    for name, value in where.items():
        if name not in columns:
            expected = f"a column of 'hybridperf score --columns' with texts or counts at {at!r}"
            hint = did_you_mean(name, columns, "choose one of them")
            raise _refusal(path, expected, f"{name!r:.80}", hint)
        kind = int if METRICS[name].kind == "whole" else str
        if type(value) is not kind:
            words = "a whole number" if kind is int else "a text"
            raise _refusal(path, f"{words} at '{at}.{name}'", f"{value!r:.80}")


#: seconds in a unit of time
SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "hours": 3600.0, "days": 86400.0}


def _require_unit(path: Path, at: str, stated: ClaimedValue, check: Check) -> None:
    """Refuse units that no figure of the check can have."""
    if isinstance(check, CompareCheck) and stated.bound == _NO_WORSE:
        return
    match check:
        case CompareCheck() | ScaleCheck():
            units = ["%", "x"]
        case PlaceCheck():
            units = [""]
        case ScoreCheck():
            unit = METRICS[check.metric].unit
            units = [*SECONDS] if unit in SECONDS else [unit] if unit else ["", "%", "x"]
        case _:
            units = [stated.unit]
    if stated.unit not in units or stated.bound == _NO_WORSE:
        expected = f"a number with {' or '.join(each or 'no unit' for each in units)} at {at!r}"
        raise _refusal(path, expected, f"{stated.text!r:.80}")


def _require_known(
    path: Path, at: str, table: Mapping[str, object], keys: tuple[str, ...] | list[str]
) -> None:
    for key in table:
        if key not in keys:
            place = f" at {at!r}" if at else ""
            hint = did_you_mean(key, keys, "remove it")
            raise _refusal(path, f"one of the keys {', '.join(keys)}{place}", f"{key!r:.80}", hint)


def _require_bounded(path: Path, at: str, table: Mapping[str, object]) -> None:
    """Refuse long texts, lists and numbers."""
    for key, value in table.items():
        place = f"{at}.{key}"
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and len(each) > _MOST_CHARACTERS:
                expected = f"at most {_MOST_CHARACTERS:,} characters at {place!r}"
                raise _refusal(path, expected, f"{len(each):,}")
            if isinstance(each, int | float) and not abs(each) <= NUMBER_CAP**4:
                raise _refusal(path, f"a number at {place!r}", "one out of range")
        if isinstance(value, list | dict) and len(value) > _MOST_ITEMS:
            raise _refusal(path, f"at most {_MOST_ITEMS:,} at {place!r}", f"{len(value):,}")
        if isinstance(value, dict) and key != "check":
            _require_bounded(path, place, value)


def _refusal(path: Path, expected: str, found: str, remedy: str = "correct it") -> UserError:
    return UserError.of("claims.file", expected, found, remedy, path=str(path))
