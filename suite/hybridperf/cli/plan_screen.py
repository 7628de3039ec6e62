"""Show ranked plans: as tables with the reason why the second one lost, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hybridperf.cli.printing import print_line, terminal_width
from hybridperf.findings import visible
from hybridperf.projection.project import duration, parts_of, why_slower
from hybridperf.report.terminal import table_text, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.projection.project import Projection
    from hybridperf.projection.search import Ranking

__all__ = ["Shown", "plans_json", "print_plans"]

#: heading and `keep` of `table_text`, by column
_COLUMNS: Final = {
    "plan": 9,
    "measured": 9,
    "step": 9,
    "samples/s": 8,
    "bubble": 7,
    "exposed": 7,
    "memory": 8,
    "target": 8,
}
_GB: Final = 1e9
_MB: Final = 1e6
_ALIKE: Final = 5e-4  #: relative difference of steps that is not shown


@dataclass(frozen=True, slots=True)
class Shown:
    """What was asked, and what was found."""

    task: str
    system: str  #: as the user named it
    source: str  #: of the times: the device of the catalogue, or the measured profile
    devices: int
    global_batch_size: int
    precision: str
    device_bytes: int | None
    equivalent: Ranking
    other: Ranking | None  #: of plans that compute something else; None: not asked for
    samples_to_target: float | None  #: of the task's reference runs at this batch size
    measured_s: dict[str, float] = field(default_factory=dict)  #: steps by plan, where measured

    def step_s(self, projection: Projection) -> float:
        """Return the seconds of a step: as measured, else as projected."""
        return self.measured_s.get(str(projection.plan), projection.step_s)

    def in_order(self, ranking: Ranking) -> list[Projection]:
        """Return the best plans of ``ranking``, by the best that is known of their steps."""
        return sorted(ranking.best, key=self.step_s)

    def why_second(self) -> str | None:
        """Return why the second of the equivalent plans lost, if there is one, as a sentence."""
        first, second = (*self.in_order(self.equivalent)[:2], None, None)[:2]
        if first is None or second is None:
            return None
        measured = [str(each.plan) in self.measured_s for each in (first, second)]
        if not any(measured):
            return why_slower(second, first)
        more_s = self.step_s(second) - self.step_s(first)
        longer = f"{duration(more_s)} ({more_s / self.step_s(first):.1%}) longer"
        if not all(measured):
            kinds = ["measured" if each else "projected" for each in measured]
            return f"{second.plan} takes {longer} as {kinds[1]} than {first.plan} as {kinds[0]}."
        projected_s = second.step_s - first.step_s
        kind = "longer" if projected_s >= 0 else "shorter"
        return (
            f"{second.plan} takes {longer} as measured; projected was "
            f"{duration(abs(projected_s))} {kind}."
        )

    def time_to_target_s(self, projection: Projection) -> float | None:
        """Return the time to train to the target without evaluations, if it is known.

        Of plans that compute something else it is not: they may take other numbers of samples.
        """
        if self.samples_to_target is None or not projection.plan.equivalent:
            return None
        return self.samples_to_target / self.global_batch_size * self.step_s(projection)


def print_plans(shown: Shown) -> None:
    """Print the rankings in tables of the terminal's width."""
    width = terminal_width()

    def say(text: str) -> None:
        print_line("\n".join(wrapped(visible(text), width)))

    devices = f"{shown.devices} device{'s' if shown.devices > 1 else ''}"
    say(
        f"{shown.task} on {devices} of {shown.system}: batch {shown.global_batch_size}, "
        f"{shown.precision}; projected from {shown.source}"
    )
    print_line()
    best = shown.in_order(shown.equivalent)
    _print_table(shown, best, width)
    print_line()
    for note in _notes(shown):
        say(note)
    if shown.other is None:
        return
    print_line()
    say("Plans that compute something else than one process does (open division):")
    print_line()
    others = shown.in_order(shown.other)
    _print_table(shown, others, width)
    if others and best:
        ratio = shown.step_s(others[0]) / shown.step_s(best[0]) - 1
        more = f"{abs(ratio):.1%} {'longer' if ratio > 0 else 'shorter'} than"
        both = {str(each.plan) for each in (others[0], best[0])} <= shown.measured_s.keys()
        known = "measured" if both else "projected"
        compared = "as long as" if abs(ratio) < _ALIKE else more
        print_line()
        say(
            f"A step of {others[0].plan} is {known} to be {compared} {best[0].plan}; how many "
            "samples it takes to the target only runs can tell."
        )


def plans_json(shown: Shown) -> dict[str, object]:
    """Return the rankings as docs/planning.md describes them."""
    return {
        "task": shown.task,
        "system": shown.system,
        "source": shown.source,
        "devices": shown.devices,
        "global_batch_size": shown.global_batch_size,
        "precision": shown.precision,
        "device_memory_bytes": shown.device_bytes,
        "samples_to_target": shown.samples_to_target,
        "equivalent": _ranking_json(shown, shown.equivalent),
        "other": _ranking_json(shown, shown.other) if shown.other else None,
        "why_second": shown.why_second(),
    }


def _print_table(shown: Shown, best: Sequence[Projection], width: int) -> None:
    rows = [_cells(shown, each) for each in best]
    used = [(index, head) for index, head in enumerate(_COLUMNS) if any(row[index] for row in rows)]
    print_line(
        table_text(
            [head for _, head in used],
            [[row[index] for index, _ in used] for row in rows],
            width,
            [_COLUMNS[head] for _, head in used],
        )
    )


def _cells(shown: Shown, projection: Projection) -> list[str]:
    measured = shown.measured_s.get(str(projection.plan))
    target_s = shown.time_to_target_s(projection)
    return [
        str(projection.plan),
        "" if measured is None else duration(measured),
        duration(projection.step_s),
        f"{projection.samples_per_s:,.0f}",
        f"{projection.idle_share:.1%}",
        duration(projection.exposed_communication_s),
        _size(max(projection.memory_bytes)),
        "unknown" if target_s is None else duration(target_s),
    ]


def _size(count: int) -> str:
    """Return a number of bytes in 10^9 or, if it is less, in 10^6."""
    return f"{count / _GB:.2f} GB" if count >= _GB else f"{count / _MB:.1f} MB"


def _notes(shown: Shown) -> Iterator[str]:
    if sentence := shown.why_second():
        yield sentence
    ranking = shown.equivalent
    yield (
        f"{ranking.considered:,} plans looked at, {ranking.too_large:,} of them too large for "
        f"memory, {ranking.projected:,} simulated; the others take longer by their lower bounds"
        + _left(ranking)
    )
    if shown.samples_to_target is None:
        yield "target: unknown, the task has no reference runs at this batch size"
    else:
        yield (
            f"target: {shown.samples_to_target:,.0f} samples, the mean of the task's reference "
            "runs, without evaluations"
        )


def _left(ranking: Ranking) -> str:
    if ranking.left_at_least_s is None:
        return "."
    return (
        f", but {ranking.left:,} were too long to simulate; these take "
        f"{duration(ranking.left_at_least_s)} at least."
    )


def _ranking_json(shown: Shown, ranking: Ranking) -> dict[str, Any]:
    return {
        "plans": [_plan_json(shown, each) for each in shown.in_order(ranking)],
        "considered": ranking.considered,
        "too_large": ranking.too_large,
        "simulated": ranking.projected,
        "left": ranking.left,
        "left_at_least_s": ranking.left_at_least_s,
    }


def _plan_json(shown: Shown, projection: Projection) -> dict[str, object]:
    return {
        "plan": str(projection.plan),
        "cuts": list(projection.cuts),
        "step_s": projection.step_s,
        "measured_step_s": shown.measured_s.get(str(projection.plan)),
        "samples_per_s": projection.samples_per_s,
        "idle_share": projection.idle_share,
        "exposed_communication_s": projection.exposed_communication_s,
        "parts_s": parts_of(projection),
        "busy_s": list(projection.busy_s),
        "memory_bytes": list(projection.memory_bytes),
        "sent_bytes": projection.sent_bytes,
        "time_to_target_s": shown.time_to_target_s(projection),
    }
