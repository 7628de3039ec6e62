"""What a mutation is, and how one is written down."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybridperf.log.package import result_names
from tests.packages import change, edit_log, edit_manifest, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.log.package import Package

RUN = 2  #: the number of the run that is changed


@dataclass(frozen=True)
class Mutation:
    """One change, and exactly the rules that find it."""

    name: str
    apply: Callable[[Package], object]
    rules: frozenset[str]
    at: tuple[str, int] | None = None  #: key and place of the line that the first rule names
    first_rule: str = field(default="")


def mutation_of(
    name: str, apply: Callable[[Package], object], *rules: str, at: tuple[str, int] | None = None
) -> Mutation:
    return Mutation(name, apply, frozenset(rules), at, rules[0])


def of_log(
    name: str,
    edit: Callable[[list[str]], object],
    *rules: str,
    at: tuple[str, int] | None = None,
) -> Mutation:
    """Change the log as its writer could have: chain and manifest follow."""
    return mutation_of(name, lambda package: edit_log(package, RUN, edit), *rules, at=at)


def of_fields(
    name: str, key: str, nth: int, *rules: str, at: tuple[str, int] | None = None, **fields: object
) -> Mutation:
    return of_log(
        name, lambda bodies: change(bodies, key, nth, **fields), *rules, at=at or (key, nth)
    )


def of_value(name: str, key: str, value: object, *rules: str) -> Mutation:
    return of_fields(name, key, 0, *rules, value=value)


def absent(key: str, *rules: str) -> Mutation:
    return of_log(f"no {key}", lambda bodies: bodies.pop(place(bodies, key)), *rules)


def of_manifest(name: str, *rules: str, **facts: object) -> Mutation:
    return mutation_of(name, lambda package: edit_manifest(package, RUN, **facts), *rules)


def of_section(name: str, section: str, rule: str, **facts: object) -> Mutation:
    def apply(package: Package) -> None:
        edit_manifest(package, RUN, **{section: manifest_of(package)[section] | facts})

    return mutation_of(name, apply, rule)


def of_files(name: str, apply: Callable[[Package], object], *rules: str) -> Mutation:
    return mutation_of(name, apply, *rules)


def manifest_of(package: Package) -> dict[str, Any]:
    """Return the manifest of the run that is changed."""
    path = package.folder / result_names(RUN)[1]
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest
