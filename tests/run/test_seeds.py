"""Seeds: all fixed before the first run, and passed on by attempts that did not complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.chain import GENESIS
from hybridperf.log.log import Log
from hybridperf.log.package import Package
from hybridperf.rules.evidence import COMMITTED_SEEDS, commitment_of, link_at, reveals, seed_of
from hybridperf.run.seeds import SECRET_FILE, draw_seed

if TYPE_CHECKING:
    from pathlib import Path


class Sealed:
    """As much of a sealed run as a seed is drawn from."""

    def __init__(self, outcome: str, seed: object) -> None:
        self.facts = {"outcome": outcome, "seed": seed}
        self.number = 0
        self.log = Log("", last_hash="a" * 64)

    def fact(self, *keys: str) -> object:
        return self.facts.get(keys[0])


@pytest.fixture
def package(tmp_path: Path) -> Package:
    package = Package(tmp_path, "acme", "laptop", "resnet-laptop")
    package.folder.mkdir(parents=True)
    return package


def draw(package: Package, *runs: Any) -> tuple[int, dict[str, Any]]:
    completed = [run for run in runs if run.facts["outcome"] in {"success", "target_missed"}]
    return draw_seed(package, runs, completed)


@pytest.mark.parametrize(
    ("runs", "seed"),
    [
        ([("success", 1), ("interrupted", 2)], 2),
        ([("interrupted", 2), ("success", 2), ("crashed", 3)], 3),
        ([("crashed", 5), ("refused", 6), ("success", 5)], 6),
        ([("silent", 7), ("over_budget", 7)], 7),
    ],
)
def test_an_ended_attempts_seed_gets_its_next_chance(
    package: Package, runs: list[tuple[str, object]], seed: int
) -> None:
    drawn, facts = draw(package, *(Sealed(outcome, each) for outcome, each in runs))

    assert drawn == seed
    assert "link" not in facts  # no seed of this secret


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [("success", 1), ("target_missed", 4)],
        [("crashed", "1"), ("crashed", None)],
    ],
)
def test_other_seeds_are_the_next_of_those_committed_to(
    package: Package, runs: list[tuple[str, object]]
) -> None:
    sealed = [Sealed(outcome, each) for outcome, each in runs]
    done = sum(outcome in {"success", "target_missed"} for outcome, _ in runs)

    drawn, facts = draw(package, *sealed)

    assert facts["position"] == done + 1
    assert reveals(facts["link"], done + 1, facts["seeds"])
    assert drawn == seed_of(facts["link"])
    assert 0 <= drawn < 2**31
    assert facts["previous"] == ("a" * 64 if runs else GENESIS)


def test_a_result_has_one_secret_which_nobody_else_may_read(package: Package) -> None:
    first, facts = draw(package)
    second, later = draw(package, Sealed("success", first))
    secret = json.loads((package.folder / SECRET_FILE).read_text())["secret"]

    assert facts["seeds"] == later["seeds"] == commitment_of(secret)
    assert first != second
    assert (package.folder / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    assert secret not in json.dumps([facts, later])


def test_a_crashed_attempt_passes_its_link_on(package: Package) -> None:
    seed, facts = draw(package)

    again, later = draw(package, Sealed("crashed", seed))

    assert (again, later["link"]) == (seed, facts["link"])


def test_a_secret_that_is_none_is_drawn_anew(package: Package) -> None:
    (package.folder / SECRET_FILE).write_text('{"secr')

    seed, facts = draw(package)

    assert seed == seed_of(facts["link"])


def test_links_lead_back_to_the_commitment_and_not_forward() -> None:
    secret = "5" * 64
    links = [link_at(secret, position) for position in (1, 2, COMMITTED_SEEDS)]

    assert links[2] == secret
    assert all(
        reveals(link, position, commitment_of(secret))
        for link, position in zip(links, (1, 2, COMMITTED_SEEDS), strict=True)
    )
    assert not reveals(links[1], 1, commitment_of(secret))
    assert not reveals(links[0], 0, links[0])
    assert len({seed_of(link_at(secret, position)) for position in range(1, 101)}) == 100
    with pytest.raises(ValueError, match="from 1 to"):
        link_at(secret, COMMITTED_SEEDS + 1)
