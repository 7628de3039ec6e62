"""The verdict on a claim, by one table of rules, from the readings of its check."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.claims.claim import CompareCheck, ProjectCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridperf.claims.claim import Claim, ClaimedValue

__all__ = [
    "CheckedClaim",
    "ClaimReading",
    "ClaimVerdict",
    "Evidence",
    "figures",
    "found_words",
    "interval_words",
    "judge_claim",
    "over_strongest",
    "telling_conditions",
]


@dataclass(frozen=True, slots=True)
class ClaimReading:
    """One value that a check computes, in the unit of the claim, and what it holds for."""

    value: float
    conditions: Mapping[str, str] = field(default_factory=dict)
    #: what the claim's source leaves open, by name: the definition of a metric, the base of a
    #: comparison, or a point of a grid
    low: float | None = None  #: 95 % interval
    high: float | None = None
    distinguishable: bool | None = None  #: whether a difference was decided; None: none is claimed
    command: str = ""  #: command that prints this value alone
    advantage: float | None = None  #: how much better than the base, as a share; None: no base


@dataclass(frozen=True, slots=True)
class Evidence:
    """The readings of a check."""

    readings: tuple[ClaimReading, ...]
    strongest: tuple[ClaimReading, ...] = ()  #: readings over the strongest bases at hand
    notes: tuple[str, ...] = ()
    lacks: str = ""  #: why there are no readings


class ClaimVerdict(enum.StrEnum):
    """The verdict on a claim."""

    CONFIRMED = "confirmed"  #: what was found rounds to what was stated
    NOT_DISTINGUISHABLE = "not distinguishable"  #: a difference is claimed, and none was decided
    HOLDS_WHERE = "holds where"  #: for a part of what the source leaves open; the part is named
    CONTRADICTED = "contradicted"
    CANNOT_BE_CHECKED = "cannot be checked"


@dataclass(frozen=True, slots=True)
class CheckedClaim:
    """A claim with its evidence and the verdict that follows from it."""

    claim: Claim
    evidence: Evidence
    verdict: ClaimVerdict
    part: str  #: what the claim holds for; "" unless the verdict is `HOLDS_WHERE`
    sentence: str

    @property
    def words(self) -> str:
        """Return the verdict with the part that it names."""
        return f"{self.verdict} {self.part}" if self.part else str(self.verdict)


#: how a reading relates to the value that is stated: it rounds to it; a difference, or the
#: difference from the stated value, is not decided; or it is another value
Fit = Literal["fits", "undecided", "misses"]


@dataclass(frozen=True, slots=True)
class _Fits:
    """The readings of a claim by their fit."""

    claim: Claim
    stated: ClaimedValue | None
    readings: tuple[ClaimReading, ...]
    fits: tuple[ClaimReading, ...]
    undecided: tuple[ClaimReading, ...]
    misses: tuple[ClaimReading, ...]
    by_errors: bool  #: whether only the intervals of projections have what is stated

    @property
    def superlative(self) -> bool:
        """Tell whether no base may be better."""
        return isinstance(self.claim.check, CompareCheck) and self.claim.check.best

    @property
    def on_grid(self) -> bool:
        """Tell whether the readings are projections on a grid."""
        return _on_grid(self.claim, self.readings)

    @property
    def better(self) -> list[ClaimReading]:
        """Return the readings whose base is better than the result."""
        return [each for each in self.readings if each.advantage is not None and each.advantage < 0]

    @property
    def others(self) -> tuple[ClaimReading, ...]:
        """Return the readings that a part for which the claim holds leaves out."""
        return self.misses or self.undecided


@dataclass(frozen=True, slots=True)
class VerdictRule:
    """A row of the table of verdicts: the first whose condition holds gives the verdict."""

    verdict: ClaimVerdict
    applies: Callable[[_Fits], bool]
    sentence: Callable[[_Fits], str]


def judge_claim(claim: Claim, evidence: Evidence) -> CheckedClaim:
    """Return the verdict on ``claim`` that follows from ``evidence`` by `RULES`."""
    sorted_readings = _fits_of(claim, evidence.readings)
    rule = next(rule for rule in RULES if rule.applies(sorted_readings))
    part = ""
    if rule.verdict is ClaimVerdict.HOLDS_WHERE:
        part = _part(sorted_readings.fits, sorted_readings.others)
    sentence = rule.sentence(sorted_readings)
    if rule.verdict is ClaimVerdict.CANNOT_BE_CHECKED and evidence.lacks:
        sentence = f"{evidence.lacks[:1].upper()}{evidence.lacks[1:]}."
    return CheckedClaim(claim, evidence, rule.verdict, part, sentence)


def _fits_of(claim: Claim, readings: tuple[ClaimReading, ...]) -> _Fits:
    stated = claim.stated
    groups: dict[Fit, list[ClaimReading]] = {"fits": [], "undecided": [], "misses": []}
    by_errors = False
    if stated is not None and _on_grid(claim, readings):
        groups["fits"], groups["misses"], by_errors = _by_cells(stated, readings)
    elif stated is not None:
        for each in readings:
            groups[_fit(stated, each)].append(each)
        if stated.bound == "up to" and groups["fits"]:
            # Smaller values do not contradict a largest one.
            groups["misses"] = [each for each in groups["misses"] if each.value > stated.most]
    fits, undecided, misses = (tuple(groups[each]) for each in ("fits", "undecided", "misses"))
    return _Fits(claim, stated, readings, fits, undecided, misses, by_errors)


def _on_grid(claim: Claim, readings: Sequence[ClaimReading]) -> bool:
    """Tell whether a claim of one value, or a largest one, is compared with projections."""
    one_sided = claim.stated is not None and claim.stated.bound in {"over", "at least"}
    return isinstance(claim.check, ProjectCheck) and len(readings) > 1 and not one_sided


def _fit(stated: ClaimedValue, reading: ClaimReading) -> Fit:
    if stated.bound == "no worse":
        if not reading.distinguishable:
            return "undecided"
        return "misses" if (reading.advantage or 0.0) < 0 else "fits"
    inside = stated.accepts(reading.value)
    if inside and reading.distinguishable is not False:
        return "fits"
    tied = reading.distinguishable is False and (inside or _may_be(stated, reading))
    return "undecided" if tied else "misses"


def _may_be(stated: ClaimedValue, reading: ClaimReading) -> bool:
    """Tell whether the interval of a reading contains a value that rounds to what is stated."""
    if reading.low is None or reading.high is None:
        return False
    return reading.low <= stated.most and stated.least <= reading.high


def _has(stated: ClaimedValue, readings: Sequence[ClaimReading], *, errors: bool) -> bool:
    """Tell whether the range of ``readings``, or of their intervals, has what is stated."""
    ends = [each.value for each in readings]
    if errors:
        ends += [end for each in readings for end in (each.low, each.high) if end is not None]
    return bool(ends) and min(ends) <= stated.most and stated.least <= max(ends)


#: conditions that a source could have stated of what it measured; it chose the others of its plan
_CONDITIONS: Final = frozenset(
    {"task", "system", "system of the base", "precision", "base", "memory of a device"}
)


def _by_cells(
    stated: ClaimedValue, readings: Sequence[ClaimReading]
) -> tuple[list[ClaimReading], list[ClaimReading], bool]:
    """Return the readings of the cells of a grid that have what is stated, and the others.

    A cell has the points of equal `_CONDITIONS`. It has a value that lies between its readings: a
    single point hardly rounds to it, since a grid does not identify the point that was measured.
    If no cell has, the intervals of readings count, as the last element says: nine of ten errors
    of projections.
    """
    cells: dict[tuple[tuple[str, str], ...], list[ClaimReading]] = {}
    for each in readings:
        key = tuple(pair for pair in each.conditions.items() if pair[0] in _CONDITIONS)
        cells.setdefault(key, []).append(each)
    by_errors = not any(_has(stated, cell, errors=False) for cell in cells.values())
    fits, others = list[ClaimReading](), list[ClaimReading]()
    for cell in cells.values():
        (fits if _has(stated, cell, errors=by_errors) else others).extend(cell)
    return fits, others, by_errors


def _values_of(readings: Iterable[ClaimReading]) -> dict[str, list[str]]:
    """Return the values of each condition, in order."""
    values: dict[str, dict[str, None]] = {}
    for each in readings:
        for name, value in each.conditions.items():
            values.setdefault(name, {})[value] = None
    return {name: list(each) for name, each in values.items()}


# The part of the readings for which a claim holds

_MOST_VALUES: Final = 6  #: of a condition that are named


def _part(fits: Sequence[ClaimReading], others: Sequence[ClaimReading]) -> str:
    """Name a part in which a claim holds: the fewest conditions that exclude all of ``others``.

    The part has all of ``fits`` if conditions tell them from ``others``, else as many as one more
    value of a condition leaves.
    """
    if not others:
        return "its conditions are open: consistent, not identified"
    names, left = _apart(fits, others)
    if not left:
        return _part_words(names, fits)
    most: tuple[int, str] = 0, f"{len(fits)} of {len(fits) + len(others)} readings have it"
    for name, values in _values_of(fits).items():
        for value in values:
            some, rest = (
                [each for each in group if each.conditions.get(name) == value]
                for group in (fits, others)
            )
            names, left = _apart(some, rest)
            if not left and len(some) > most[0]:
                most = len(some), _part_words([name, *names], some)
    return most[1]


def _apart(
    fits: Sequence[ClaimReading], others: Sequence[ClaimReading]
) -> tuple[list[str], list[ClaimReading]]:
    """Return the fewest conditions whose values in ``fits`` exclude others, and who is left."""
    mine, every = _values_of(fits), _values_of((*fits, *others))

    def left(names: Sequence[str]) -> list[ClaimReading]:
        return [
            each
            for each in others
            if all(each.conditions.get(name) in mine.get(name, ()) for name in names)
        ]

    narrower = [name for name in every if len(mine.get(name, ())) < len(every[name])]
    narrower.sort(key=lambda name: (len(left([name])), len(mine.get(name, ()))))
    chosen: list[str] = []
    for name in narrower:
        if len(left([*chosen, name])) < len(left(chosen)):
            chosen.append(name)
    for name in list(chosen):
        fewer = [each for each in chosen if each != name]
        if len(left(fewer)) == len(left(chosen)):
            chosen = fewer
    return [name for name in every if name in chosen], left(chosen)


def _part_words(names: Sequence[str], fits: Sequence[ClaimReading]) -> str:
    mine = _values_of(fits)
    return " and ".join(f"{name} is {_listed(mine.get(name, ['unknown']))}" for name in names)


def _listed(values: Sequence[str]) -> str:
    *most, last = values[:_MOST_VALUES]
    if len(values) > _MOST_VALUES:
        return f"one of {len(values)}, such as {', '.join((*most, last))}"
    return f"{', '.join(most)} or {last}" if most else last


# Figures and sentences


def figures(readings: Sequence[ClaimReading], stated: ClaimedValue | None) -> str:
    """Return the range of the values of ``readings``, with the unit; "" for none."""
    return _range([each.value for each in readings], stated)


def _range(values: Sequence[float], stated: ClaimedValue | None) -> str:
    """Return the range of ``values`` with more digits than ``stated`` has, and with its unit."""
    if not values:
        return ""
    decimals = stated.decimals if stated else 0
    whole = decimals == 0 and all(value == round(value) for value in values)
    decimals = 0 if whole or max(map(abs, values)) >= _LARGE else max(2, decimals + 1)
    unit = stated.unit if stated else ""
    ends = dict.fromkeys(f"{pick(values):,.{decimals}f}" for pick in (min, max))
    return f"{' to '.join(ends)}{unit if unit in {'x', ''} else f' {unit}'}"


def found_words(checked: CheckedClaim) -> str:
    """Return what was found, such as ``148.55 s`` or ``1.03 to 25.79 %``; "" for nothing."""
    return figures(checked.evidence.readings, checked.claim.stated)


def over_strongest(checked: CheckedClaim) -> dict[str, str]:
    """Return the range of the readings over each of the strongest bases at hand."""
    by_base: dict[str, list[ClaimReading]] = {}
    for reading in checked.evidence.strongest:
        by_base.setdefault(reading.conditions.get("base", "the strongest base"), []).append(reading)
    return {base: figures(some, checked.claim.stated) for base, some in by_base.items()}


def interval_words(reading: ClaimReading, stated: ClaimedValue | None) -> str:
    """Return the interval of a reading, such as ``92.70 to 95.40 %``; "" for none."""
    low, high = reading.low, reading.high
    ends = [each for each in (low, high) if each is not None and math.isfinite(each)]
    words = _range(ends, stated)
    if len(ends) == 1:
        words += " or more" if ends[0] == low else " or less"
    return words


def _one(reading: ClaimReading, stated: ClaimedValue | None, names: Sequence[str] = ()) -> str:
    """Return a value with its interval, after the values of the conditions ``names``."""
    words = figures([reading], stated)
    if (interval := interval_words(reading, stated)) and (reading.low, reading.high) != (
        reading.value,
        reading.value,
    ):
        words += f" ({interval})"
    where = ", ".join(reading.conditions[name] for name in names if name in reading.conditions)
    return f"{where}: {words}" if where else words


def telling_conditions(readings: Sequence[ClaimReading]) -> list[str]:
    """Return the first conditions that tell ``readings`` apart, as far as conditions do."""
    names: list[str] = []
    apart = 1
    for name in _values_of(readings):
        several = {tuple(each.conditions.get(one) for one in (*names, name)) for each in readings}
        if len(several) > apart:
            names.append(name)
            apart = len(several)
    return names


_LARGE: Final = 1e4  #: from which decimals are insignificant
_MOST_SHOWN: Final = 8  #: readings that a sentence lists


def _some(readings: Sequence[ClaimReading], them: _Fits) -> str:
    """Return ``readings`` one by one, or their range if there are many."""
    if len(readings) > _MOST_SHOWN:
        return f"{figures(readings, them.stated)} in {len(readings)} readings"
    names = telling_conditions(them.readings)
    return ", ".join(_one(each, them.stated, names) for each in readings)


def _text(them: _Fits) -> str:
    return them.stated.text if them.stated else ""


def _confirmed(them: _Fits) -> str:
    rounds = them.stated is not None and them.stated.bound in {"equal", "about"}
    words = "it rounds to" if rounds else "as stated:"
    return f"{_some(them.fits, them)}; {words} {_text(them)}."


def _better_bases(them: _Fits) -> str:
    decided = any(each.distinguishable for each in them.better)
    note = "" if decided else "; the runs do not decide the difference"
    return f"Better: {_some(them.better, them)}{note}."


def _not_distinguishable(them: _Fits) -> str:
    found = _some(them.undecided, them)
    return f"{found}; the runs do not decide whether there is a difference."


def _holds_where(them: _Fits) -> str:
    if them.on_grid:
        words = f"Projected {figures(them.fits, them.stated)} at {len(them.fits)} points"
        if them.misses:
            words += f", {figures(them.misses, them.stated)} at the other {len(them.misses)}"
        errors = " by nine of ten errors of projections" if them.by_errors else ""
        words += f"; consistent with {_text(them)}{errors}, not identified"
        nearest = _nearest(them)
        facts = [f"{name} {nearest.conditions.get(name)}" for name in telling_conditions(them.fits)]
        return f"{words}; nearest {figures([nearest], them.stated)} with {', '.join(facts)}."
    words = f"It holds for {_some(them.fits, them)}"
    if them.undecided:
        words += f"; not distinguishable: {_some(them.undecided, them)}"
    if them.misses:
        words += f"; not for {_some(them.misses, them)}"
    return f"{words}."


def _nearest(them: _Fits) -> ClaimReading:
    """Return the reading of the part that is nearest to what is stated."""
    stated = them.stated
    middle = (stated.least + stated.most) / 2 if stated is not None else 0.0
    return min(them.fits, key=lambda each: abs(each.value - middle))


def _contradicted(them: _Fits) -> str:
    if them.stated is not None and them.stated.bound == "no worse":
        words = f"Worse: {_some(them.misses, them)}"
        if them.undecided:
            words += f"; not distinguishable: {_some(them.undecided, them)}"
        return f"{words}."
    words = f"{_some(them.misses, them)}; not {_text(them)}"
    stated = them.stated
    if stated is not None and any(_may_be(stated, each) for each in them.misses):
        words += "; the interval has what is stated, so other runs may round to it"
    return f"{words}."


def _universal(them: _Fits) -> bool:
    """Tell whether one exception contradicts the claim."""
    return them.stated is not None and them.stated.bound == "no worse"


#: the first row that applies gives the verdict
RULES: Final = (
    VerdictRule(
        ClaimVerdict.CANNOT_BE_CHECKED,
        lambda them: not them.readings,
        lambda _: "Nothing was found to check it by.",
    ),
    VerdictRule(
        ClaimVerdict.CONTRADICTED,
        lambda them: them.superlative and bool(them.better),
        _better_bases,
    ),
    VerdictRule(
        ClaimVerdict.CONTRADICTED,
        lambda them: _universal(them) and bool(them.misses),
        _contradicted,
    ),
    VerdictRule(
        ClaimVerdict.NOT_DISTINGUISHABLE,
        lambda them: (them.superlative or _universal(them)) and bool(them.undecided),
        _not_distinguishable,
    ),
    VerdictRule(
        ClaimVerdict.CONFIRMED,
        lambda them: bool(them.fits) and not them.others and not them.on_grid,
        _confirmed,
    ),
    VerdictRule(ClaimVerdict.HOLDS_WHERE, lambda them: bool(them.fits), _holds_where),
    VerdictRule(
        ClaimVerdict.NOT_DISTINGUISHABLE, lambda them: bool(them.undecided), _not_distinguishable
    ),
    VerdictRule(ClaimVerdict.CONTRADICTED, lambda them: bool(them.misses), _contradicted),
)
