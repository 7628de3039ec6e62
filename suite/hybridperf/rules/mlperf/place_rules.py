"""Rules for the consistency of logs with their folder and the system description."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, rule
from hybridperf.system.catalog import accelerators_per_node, node_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark

_LAYOUT: Final = "MLPerf submission rules, 'Directory structure'"
_FIELDS: Final = "MLPerf submission rules, '<system_desc_id>.json metadata'"
_COUNT: Final = re.compile(r"\s*([0-9]{1,6})\s*x\s*(?=\S)")


@rule(
    "place.benchmark",
    scope="result",
    source=f"{_LAYOUT}: benchmark directory names are the keywords that logs use",
    remedy="put the log into the folder of its benchmark",
)
def benchmark_is_the_folder(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """The log names the benchmark of its folder."""
    folder = result.package.benchmark
    for run in result.runs:
        entry = run.log.first(keys.SUBMISSION_BENCHMARK)
        if entry is not None and entry.value != folder:
            expected = f"{entry.key} {folder}, as the folder is called"
            yield Deviation(expected, f"{entry.value!r:.80}", entry.line, run.number)


@rule(
    "place.division",
    scope="result",
    source="MLPerf submission rules, 'Results tables': one for Closed and one for Open",
    remedy="enter the result into the division that its logs were made for",
)
def division_is_the_systems(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """The log names the division of the system's description."""
    stated = (result.system or {}).get("division")
    if not isinstance(stated, str):
        return
    for run in result.runs:
        entry = run.log.first(keys.SUBMISSION_DIVISION)
        if entry is None or str(entry.value).casefold() == stated.casefold():
            continue
        # Closed logs may be submitted to the open division, but not vice versa.
        closed = str(entry.value).casefold() == "closed"
        yield Deviation(
            f"{entry.key} {stated}, as in the system's description",
            f"{entry.value!r:.80}",
            entry.line,
            run.number,
            severity=Severity.WARNING if closed else None,
        )


@rule(
    "place.organisation",
    scope="result",
    source=f"{_LAYOUT}: <submitting_organization>/",
    remedy="log the organisation that submits the result",
    severity=Severity.WARNING,
)
def organisation_is_the_folder(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """Logs name the organisation of their folder."""
    folder = result.package.org

    def other(value: str) -> bool:
        return value.casefold() != folder.casefold()

    expected = f"{keys.SUBMISSION_ORG} {folder}, as the folder is called"
    yield from _counted(result, keys.SUBMISSION_ORG, other, expected)


@rule(
    "place.status",
    scope="result",
    source="MLPerf submission rules, 'Results categories'",
    remedy="log the category that the description enters the result into",
    severity=Severity.WARNING,
)
def status_is_the_systems(
    result: Result, benchmark: Benchmark, *, said_of: Mapping[str, Sequence[str]]
) -> Iterator[Deviation]:
    """Logs name the description's category, in one of the words that ``said_of`` lists for it."""
    stated = str((result.system or {}).get("status", "")).strip()
    known = said_of.get(stated.casefold())
    if known is None:
        return

    def other(value: str) -> bool:
        return value.casefold() not in known

    expected = f"{keys.SUBMISSION_STATUS} {' or '.join(known)}, as the system's status is {stated}"
    yield from _counted(result, keys.SUBMISSION_STATUS, other, expected)


@rule(
    "place.platform",
    scope="result",
    source=f"{_FIELDS}: number_of_nodes, accelerators_per_node",
    remedy="log the platform of the description",
    severity=Severity.WARNING,
)
def platform_is_the_system(
    result: Result, benchmark: Benchmark, *, placeholder: str
) -> Iterator[Deviation]:
    """Logs name a platform with the description's number of nodes or accelerators."""

    def unnamed(value: str) -> bool:
        return placeholder.casefold() in value.casefold()

    yield from _counted(result, keys.SUBMISSION_PLATFORM, unnamed, "the name of a platform")
    system = result.system or {}
    nodes, each = node_count(system), accelerators_per_node(system)
    if not nodes or each is None:
        return
    counts = {nodes, nodes * each, each} if nodes == 1 else {nodes, nodes * each}

    def miscounted(value: str) -> bool:
        match = _COUNT.match(value)
        return match is not None and int(match[1]) not in counts

    expected = f"a platform of {nodes} nodes with {each} accelerators, as in the description"
    yield from _counted(result, keys.SUBMISSION_PLATFORM, miscounted, expected)


def _counted(
    result: Result, key: str, wrong: Callable[[str], bool], expected: str
) -> Iterator[Deviation]:
    """Yield one deviation per wrong value of ``key``, with the number of logs that have it."""
    logs: dict[str, int] = defaultdict(int)
    for run in result.runs:
        entry = run.log.first(key)
        if entry is not None and wrong(str(entry.value)):
            logs[f"{entry.value!r:.80}"] += 1
    for value, count in logs.items():
        yield Deviation(expected, f"{value} in {count} of {len(result.runs)} logs")
