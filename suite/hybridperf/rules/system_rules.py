"""Rules for system descriptions: required fields, numbers and vocabulary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.rules.rule import Deviation, first_of, rule
from hybridperf.system.catalog import accelerators_per_node, node_count
from hybridperf.untrusted import parse_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.submission import Submission

_FIELDS: Final = "MLPerf submission rules, '<system_desc_id>.json metadata'"
_CATEGORIES: Final = "MLPerf submission rules, 'Results categories'"
# N/A is not in the set, since examples in the rules use it.
_EMPTY: Final = frozenset({"", "-", "?", ".", "null", "tbd", "todo", "unknown"})
_NO_ACCELERATOR: Final = _EMPTY | {"n/a", "na", "none", "no", "0"}
_MOST_NAMED: Final = 4
_OF_ACCELERATORS: Final = "accelerator_"
# Node and accelerator counts in folder names: dgxa100_n8, 8-nodes-SPR, _8N_, 8xA100.
_STATED: Final = re.compile(
    r"(?:^|[_-])n(?P<n>[0-9]{1,5})(?=[_-]|$)|(?:^|[_-])(?P<nodes>[0-9]{1,5})[_-]?nodes?(?=[_-]|$)"
    r"|(?:^|[_-])(?P<N>[0-9]{1,5})N(?=[_-]|$)|(?:^|[_-])(?P<times>[0-9]{1,5})x(?=[A-Za-z])"
)


@rule(
    "system.fields",
    scope="submission",
    source=f"{_FIELDS}: the file should contain the following metadata",
    remedy="add the fields; those that need no answer may be empty text",
)
def fields_present(
    submission: Submission, *, fields: Sequence[str], texts: Sequence[str]
) -> Iterator[Deviation]:
    """Every field is present, and is text or a number."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        if missing := [field for field in fields if field not in system]:
            yield Deviation(
                f"all {len(fields)} fields", f"none of {first_of(missing, _MOST_NAMED)}", path=place
            )
        for field in fields:
            value = system.get(field, "")
            listed = field not in texts and isinstance(value, dict | list)
            if isinstance(value, bool) or not (listed or isinstance(value, str | int | float)):
                yield Deviation(f"{field} as text", f"{value!r:.80}", path=place)


@rule(
    "system.meaning",
    scope="submission",
    source=f"{_FIELDS}: 'meaningful response required'",
    remedy="state what the system has, or that it has none",
    severity=Severity.WARNING,
)
def fields_mean_something(
    submission: Submission, *, meaningful: Sequence[str], cores: Sequence[str]
) -> Iterator[Deviation]:
    """Fields that require a meaningful response have one; one of ``cores`` is enough."""
    for name, system in submission.systems.items():
        host_only = accelerators_per_node(system) == 0
        empty = [
            field
            for field in meaningful
            if field in system
            and _is_empty(system[field])
            and not (host_only and field.startswith(_OF_ACCELERATORS))
        ]
        preview = str(system.get("status")).casefold() == "preview"
        if not preview and cores and all(_is_empty(system.get(field)) for field in cores):
            empty.append(" or ".join(cores))
        if empty:
            place = submission.place("systems", f"{name}.json")
            yield Deviation(
                f"meaningful responses in {len(meaningful) + bool(cores)} fields",
                f"none in {first_of(empty, _MOST_NAMED)}",
                path=place,
            )


@rule(
    "system.numbers",
    scope="submission",
    source=f"{_FIELDS}: numbers of nodes, processors and accelerators",
    remedy="write a whole number, as a number or as text",
)
def numbers_are_numbers(
    submission: Submission, *, at_least: Mapping[str, int], if_any: Sequence[str]
) -> Iterator[Deviation]:
    """Counts are whole numbers; those in ``if_any`` may be empty."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        for field, least in at_least.items():
            if field in system and parse_count(system[field], least) is None:
                expected = f"{field} to be a whole number, at least {least}"
                yield Deviation(expected, f"{system[field]!r:.80}", path=place)
        for field in if_any:
            value = system.get(field)
            if not _is_empty(value) and parse_count(value) is None:
                expected = f"{field} to be a whole number or empty"
                yield Deviation(expected, f"{value!r:.80}", path=place, severity=Severity.WARNING)


@rule(
    "system.words",
    scope="submission",
    source=f"{_CATEGORIES}; two tables of results, one for Closed and one for Open",
    remedy="write one of these words",
)
def known_words(
    submission: Submission, *, words: Mapping[str, Sequence[str]]
) -> Iterator[Deviation]:
    """Fields with a vocabulary contain one of its words, in any case."""
    for name, system in submission.systems.items():
        for field, known in words.items():
            if field in system and str(system[field]).strip().casefold() not in known:
                yield Deviation(
                    f"{field} to be one of {', '.join(known)}",
                    f"{system[field]!r:.80}",
                    path=submission.place("systems", f"{name}.json"),
                )


@rule(
    "system.submitter",
    scope="submission",
    source=f"{_FIELDS}: submitter; 'Directory structure': <submitting_organization>/",
    remedy="name the organisation as its folder is called",
    severity=Severity.WARNING,
)
def submitter_is_the_folder(submission: Submission) -> Iterator[Deviation]:
    """The submitter is the organisation of the folder."""
    for name, system in submission.systems.items():
        submitter = system.get("submitter")
        if submitter is not None and str(submitter).casefold() != submission.org.casefold():
            yield Deviation(
                f"submitter {submission.org}, as the folder is called",
                f"{submitter!r:.80}",
                path=submission.place("systems", f"{name}.json"),
            )


@rule(
    "system.counts",
    scope="submission",
    source="HybridPerf rules, section 6: a system's name and its description state the same counts",
    remedy="correct the description, or rename the system",
    severity=Severity.WARNING,
)
def counts_agree(submission: Submission) -> Iterator[Deviation]:
    """Numbers in the system's name agree with its description, and accelerators have a name."""
    for name, system in submission.systems.items():
        place = submission.place("systems", f"{name}.json")
        nodes, each = node_count(system), accelerators_per_node(system)
        if not nodes or each is None:
            continue
        for match in _STATED.finditer(name):
            stated, kind = int(match[match.lastgroup or 0]), match.lastgroup
            allowed = {nodes, each, nodes * each} if kind == "times" else {nodes}
            if stated not in allowed:
                expected = f"{nodes} nodes of {each} accelerators, as the fields say, in the name"
                yield Deviation(expected, match[0].strip("_-"), path=place)
        model = str(system.get("accelerator_model_name", "")).strip()
        named = model.casefold() not in _NO_ACCELERATOR
        if named != (each > 0):
            expected = "a name where there are accelerators, and none where there are none"
            found = f"{model!r:.60} on {each} accelerators a node"
            yield Deviation(expected, found, path=place)


def _is_empty(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() in _EMPTY
    return value is None or value == {} or value == []
