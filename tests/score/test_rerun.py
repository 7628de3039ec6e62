"""What a re-run says of a result: quality, samples, hardware and time, each by itself."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.package import read_result
from hybridperf.rules.evidence import Attestation, attestation_file, read_attestations
from hybridperf.run.files import canonical_json
from hybridperf.score.official import official_of
from hybridperf.score.rerun import attest
from tests.evidence import describe_as_found
from tests.packages import VALID, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package, Result
    from hybridperf.score.official import Official

TIMES_S = (10.0, 11.0, 12.0, 13.0, 14.0)


def made(root: Path, **how: Any) -> Package:
    package = write_result(root, **how)
    describe_as_found(package)
    return package


def scored(package: Package) -> tuple[Result, Official]:
    result = read_result(package)
    return result, official_of(result, VALID)


@pytest.fixture
def original(tmp_path: Path) -> Package:
    return made(tmp_path / "original", times_s=TIMES_S)


def found(original: Package, again: Package) -> Attestation:
    return attest(scored(original), scored(again))


def test_the_same_again_confirms(original: Package, tmp_path: Path) -> None:
    again = made(tmp_path / "again", org="other", times_s=[t + 0.5 for t in TIMES_S])

    statement = found(original, again)

    assert statement.problem == ""
    assert (statement.by, statement.subject.org, statement.runs) == ("other", "acme", 5)
    assert statement.subject.sums_sha256 != statement.rerun_sums_sha256
    assert statement.time_s == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"times_s": [3 * t for t in TIMES_S]}, "its time to train differs"),
        ({"times_s": [t / 3 for t in TIMES_S]}, "its time to train differs"),
        ({"times_s": TIMES_S[:2]}, "it has too few runs for a time to train"),
        ({"epochs": 5}, "its samples to target differ"),
        ({"missed": [1]}, "it did not reach the target"),
        ({"missed": [0, 1, 2, 3, 4]}, "it did not reach the target"),
    ],
)
def test_what_differs_is_named(
    original: Package, tmp_path: Path, how: dict[str, Any], problem: str
) -> None:
    again = made(tmp_path / "again", org="other", **how)

    assert found(original, again).problem == problem


def test_other_hardware_is_named(original: Package, tmp_path: Path) -> None:
    again = made(tmp_path / "again", org="other")
    describe_as_found(again, host_processor_core_count="64")

    assert found(original, again).problem == "it was made on other hardware"


def test_a_statement_is_read_as_it_was_written(original: Package, tmp_path: Path) -> None:
    statement = found(original, made(tmp_path / "again", org="other"))
    path = attestation_file(original, "other")
    path.write_bytes(canonical_json(statement.as_json()))

    assert list(read_attestations(original)) == [(path, statement)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rerun_other.json", "{}"),
        ("rerun_other.json", "[" * 100),
        ("rerun_third.json", None),
        ("rerun_-.json", None),
    ],
)
def test_a_statement_that_is_none_says_why(
    original: Package, tmp_path: Path, name: str, text: str | None
) -> None:
    statement = found(original, made(tmp_path / "again", org="other"))
    content = canonical_json(dataclasses.asdict(statement)).decode() if text is None else text
    (original.folder / name).write_text(content)

    ((_, said),) = read_attestations(original)

    assert isinstance(said, str)
    assert said
