"""Projected and measured steps of the methods over slow links.

Nothing is fitted to the projected steps: the same ranks profile the task, and measure the link at
each rate by all-reduces and messages.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.profile import fit_line
from hybridperf.projection.search import Work
from hybridperf.projection.simulate import simulated_steps
from hybridperf.projection.units import load_units
from hybridperf.tasks.registry import find_task
from studies.slow_links.blocks import COMPARISONS, METHODS, PROJECTED_PLANS
from studies.slow_links.shaped_link import ADDRESSES, LinkShape
from studies.slow_links.tables import (
    CLEARLY,
    crossovers,
    markdown,
    measured_ratios,
    rate_name,
    three_digits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hybridperf.projection.profile import Profile
    from hybridperf.projection.project import Projection
    from hybridperf.projection.units import UnitTimes
    from studies.slow_links.blocks import Record, SlowLinkMethod

MeasuredLinks: TypeAlias = "Mapping[float, Mapping[str, Sequence[tuple[int, float]]]]"
#: bytes and seconds of all-reduces and messages, by rate
Profiles: TypeAlias = "Mapping[tuple[str, int, float], Sequence[Profile]]"
#: profiles of all repetitions, by task, number of ranks and rate

__all__ = [
    "MeasuredLinks",
    "Profiles",
    "network",
    "projected_plans",
    "projected_step_s",
    "projections",
    "unlimited_mbit_per_s",
]

_BURSTS: Final = 4  # least size of messages in the fit of a link, in bursts
_PAYLOAD_SHARE: Final = 1448 / 1514  # payload of a packet
_COMMUNICATION_BOUND: Final = 0.5  # least share of a step with a busy link


def network(profile: Profile, rate_mbit_per_s: float, ranks: int, links: MeasuredLinks) -> Network:
    """Return the network of two machines with half of ``ranks`` each and a link of this rate.

    Rate 0 means no limit, as inside a machine.
    """
    own, measured = ranks // len(ADDRESSES), profile.network()
    (inside, inside_ring), (between, ring) = (
        _fit_links(rate, links[rate]) for rate in (0.0, rate_mbit_per_s)
    )
    return replace(
        measured,
        devices_per_node=own,
        inside=inside,
        between=replace(between, shared_by=own),
        inside_collectives=inside_ring,
        between_collectives=replace(ring, shared_by=own),
    )


def _fit_links(
    rate_mbit_per_s: float, transfers: Mapping[str, Sequence[tuple[int, float]]]
) -> tuple[NetworkLink, NetworkLink]:
    """Return the links of messages and of a ring's steps, for an empty token bucket."""
    burst_bytes = burst_s = 0.0
    if rate_mbit_per_s:
        shape = LinkShape.of_rate(rate_mbit_per_s * 1e6)
        burst_bytes = shape.burst_bytes * _PAYLOAD_SHARE
        burst_s = shape.burst_bytes / shape.bytes_per_s
    # While a message returns, the bucket of the other direction refills: each message begins with
    # a burst. All-reduces send in both directions all the time, so buckets stay empty.
    saved_s = {"send": burst_s, "all_reduce": 0.0}
    fitted = {
        kind: fit_line(
            [(size, own_s + saved_s[kind]) for size, own_s in times if size > _BURSTS * burst_bytes]
        )
        for kind, times in transfers.items()
    }
    (send_s, send_byte_s), (ring_s, ring_byte_s) = fitted["send"], fitted["all_reduce"]
    # An all-reduce of two ranks has two steps, and each rank sends all bytes once.
    return (
        NetworkLink(send_s, 1 / send_byte_s),
        NetworkLink(ring_s / 2, 1 / ring_byte_s),
    )


def unlimited_mbit_per_s(links: MeasuredLinks) -> float:
    """Return the rate of all-reduces over the unlimited link."""
    return _fit_links(0.0, links[0.0])[1].bytes_per_s * 8e-6


def projected_step_s(
    method: SlowLinkMethod,
    rate_mbit_per_s: float,
    profile: Profile,
    input_s: float,
    links: MeasuredLinks,
    steps: int,
) -> float:
    """Return the projected mean step time of a block of ``steps``, from ``profile``.

    As in a measured block, the pipeline is empty before the first step and after the last.
    ``input_s`` is the reading time of a step's samples. Stages of a replica that share a processor
    are projected as one rank with their work: while one stage waits, another computes.
    """
    plan, stretch = ParallelPlan.parse(method.plan), 1.0
    if plan.ranks > len(ADDRESSES):
        plan, stretch = _as_one_rank(plan, profile, input_s)
    between = network(profile, rate_mbit_per_s, plan.ranks, links)
    found = _project(plan, profile, between, input_s, stretch, with_timeline=True)
    assert found.timeline is not None, "asked for"
    simulated, _ = simulated_steps(plan)
    return (found.timeline.makespan_s + (steps - len(simulated)) * found.step_s) / steps


def _as_one_rank(
    plan: ParallelPlan, profile: Profile, input_s: float
) -> tuple[ParallelPlan, float]:
    """Return ``plan`` without its pipelines, and the stretch of its units."""
    whole = replace(plan, pp=1, schedule=None, flush=FIELDS["flush"].default)
    free, measured = NetworkLink(0.0, 1e15), profile.network()
    alone = Network(plan.pp, free, free, pass_s=measured.pass_s, bucket_s=measured.bucket_s)
    together = max(1, profile.ranks // len(ADDRESSES))  # ranks on one processor in the profile
    work_s = sum(_project(plan, profile, alone, input_s).busy_s) / together
    # A message between two ranks of a processor occupies it all the time.
    work_s += 2 * plan.microbatches * (plan.pp - 1) * measured.inside.latency_s
    one_s, two_s = (
        sum(_project(whole, profile, alone, input_s, stretch).busy_s) for stretch in (1.0, 2.0)
    )
    return whole, 1 + (work_s - one_s) / (two_s - one_s)


def projected_plans(profiles: Profiles, links: MeasuredLinks) -> str:
    """Return a table of projected steps on two machines of two devices each, in Markdown.

    Medians over the profiles of a task.
    """
    rates = sorted(links, key=lambda rate: -(rate or math.inf))
    rows = [("task", "method", *map(rate_name, rates))]
    for task in dict.fromkeys(task for task, *_ in profiles):
        for each in PROJECTED_PLANS:
            plan = ParallelPlan.parse(each.plan)
            steps_s = (
                statistics.median(
                    _project(plan, own, network(own, rate, plan.ranks, links), 0.0).step_s
                    for own in profiles[task, len(ADDRESSES), rate]
                )
                for rate in rates
            )
            cells = (three_digits(each * 1e3) for each in steps_s)
            rows.append((task, f"{each.name} (`{each.plan}`)", *cells))
    return markdown(rows)


def _project(
    plan: ParallelPlan,
    profile: Profile,
    between: Network,
    input_s: float,
    stretch: float = 1.0,
    *,
    with_timeline: bool = False,
) -> Projection:
    profile = replace(profile, input_s=0.0, target_s=0.0)  # ``input_s`` has them
    return Work.of_task(
        find_task(profile.task),
        load_units(profile.task),
        lambda size: _stretch(profile.times(size), stretch, input_s / plan.microbatches),
        replace(between, pass_s=stretch * between.pass_s),
    ).project(plan, with_timeline=with_timeline)


def projections(
    records: Sequence[Record],
    profiles: Profiles,
    links: MeasuredLinks,
) -> str:
    """Return tables in Markdown: measured and projected step times, and crossovers.

    Medians over blocks, and over projections from each profile. Ratios are medians of ratios
    within a repetition, so that its load cancels.
    """
    methods = {method.key: method for method in METHODS}
    measured: dict[tuple[str, float, str], list[Record]] = defaultdict(list)
    for record in records:
        if (record.task, methods[record.method].ranks, record.rate_mbit_per_s) in profiles:
            measured[record.task, record.rate_mbit_per_s, record.method].append(record)
    found_s: dict[tuple[str, float, str], list[float]] = {}  # projections by profile
    measured_s: dict[tuple[str, float, str], float] = {}
    bound, errors = [], []
    rows: list[tuple[str, ...]] = [
        ("task", "method", "Mbit/s", "measured, ms", "projected, ms", "error", "link busy")
    ]
    for place, some in measured.items():
        task, rate, key = place
        input_s = statistics.median(record.input_s for record in some)
        steps = statistics.median_low(record.steps for record in some)
        measured_s[place] = statistics.median(record.step_s for record in some)
        found_s[place] = [
            projected_step_s(methods[key], rate, own, input_s, links, steps)
            for own in profiles[task, methods[key].ranks, rate]
        ]
        projected_s = statistics.median(found_s[place])
        error = projected_s / measured_s[place] - 1
        busy = statistics.median(
            max(r.sent_bytes) * 8 / (rate * 1e6) / r.step_s if rate else 0.0 for r in some
        )
        errors.append(abs(error))
        if busy >= _COMMUNICATION_BOUND:
            bound.append(abs(error))
        times = (three_digits(seconds * 1e3) for seconds in (measured_s[place], projected_s))
        rate_name = f"{rate:g}" if rate else "any"
        rows.append((task, methods[key].name, rate_name, *times, f"{error:+.1%}", f"{busy:.0%}"))
    summary = (
        f"Error where the link is busy for at least half of a step: {_summary(bound)}; "
        f"of all: {_summary(errors)}."
    )
    most = unlimited_mbit_per_s(links) if links else math.inf
    return "\n\n".join([markdown(rows), summary, _crossover_table(records, found_s, most)])


def _summary(errors: Sequence[float]) -> str:
    if not errors:
        return "none measured"
    return (
        f"median {statistics.median(errors):.1%}, worst {max(errors):.1%} ({len(errors)} figures)"
    )


def _crossover_table(
    records: Sequence[Record],
    projected_s: Mapping[tuple[str, float, str], Sequence[float]],
    most_mbit_per_s: float,
) -> str:
    rows: list[tuple[str, ...]] = [
        ("task", "crossover, Mbit/s", "measured", "projected", "ratio", "distance of ranges")
    ]
    for task in dict.fromkeys(task for task, _, _ in projected_s):
        for comparison in COMPARISONS:
            projected = {
                rate: [statistics.median(map(operator.truediv, first, second))]
                for (name, rate, key), first in projected_s.items()
                if (name, key) == (task, comparison.first)
                and (second := projected_s.get((task, rate, comparison.second)))
            }
            measured = measured_ratios(records, task, comparison)
            found = [crossovers(measured, most_mbit_per_s)]
            # A projection has no noise: any difference counts.
            clearly = 1.0 if found[0] else CLEARLY
            found.append(crossovers(projected, most_mbit_per_s, clearly))
            if not any(found):
                continue
            texts = [", ".join(map(str, each)) or "none" for each in found]
            errors = ["", ""]
            if [len(each) for each in found] == [1, 1]:
                (one,), (other,) = found
                errors = [f"{one.factor(other):.2f}", f"{one.gap(other):.2f}"]
            rows.append((task, comparison.name, *texts, *errors))
    return markdown(rows)


def _stretch(times: UnitTimes, stretch: float, input_s: float) -> UnitTimes:
    """Return ``times`` multiplied by ``stretch``, with ``input_s`` before the first unit."""
    first, *others = times.forward_s

    def all_of(seconds: Iterable[float]) -> tuple[float, ...]:
        return tuple(stretch * each for each in seconds)

    return replace(
        times,
        forward_s=all_of((first + input_s, *others)),
        backward_s=all_of(times.backward_s),
        loss_s=stretch * times.loss_s,
        update_s=all_of(times.update_s),
    )
