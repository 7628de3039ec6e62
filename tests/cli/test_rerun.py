"""``hybridperf rerun``: which code it runs, and what it writes."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli.commands import rerun
from hybridperf.rules.check import check_path
from tests.evidence import chain, describe_as_found, keep_models, list_key, make_key
from tests.packages import edit_manifest, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.run.request import RunRequest
    from tests.run.conftest import Finished

CODE = {"trainer": "hybridperf_reference", "suite_sha256": "a" * 64, "trainer_sha256": "b" * 64}


def made(root: Path, **how: Any) -> Package:
    package = write_result(root, **how)
    keep_models(package)
    describe_as_found(package)
    for number in range(5):
        edit_manifest(package, number, code=CODE | {"commit": "c" * 40})
    chain(package)
    return package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(rerun, "code_facts", lambda trainer: CODE | {"trainer": trainer})
    return made(tmp_path / "published", overrides={"optimizer.lr": 0.05})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """The requests for runs, which are made up: as the original's, of another organisation."""
    requests: list[RunRequest] = []

    def make_runs(request: RunRequest, *, quiet: bool) -> Package:
        requests.append(request)
        return made(tmp_path / "again", org=request.org, overrides=dict(request.overrides))

    monkeypatch.setattr(rerun, "make_runs", make_runs)
    return requests


def test_a_signed_re_run_lifts_the_result(
    hybridperf: Callable[..., Finished], package: Package, asked: list[RunRequest], tmp_path: Path
) -> None:
    key = make_key(tmp_path / "keys", "other")
    list_key(package.root, "other", key)
    before = check_path(package.root)

    done = hybridperf("rerun", str(package.folder), "--org", "other", "--key", str(key))

    after = check_path(package.root)
    assert (done.code, done.out.splitlines()[-1]) == (0, "Confirmed.")
    assert [each.trust.level for each in before.results] == ["re-scored"]
    assert [each.trust.words for each in after.results] == ["re-run (by other)"]
    (request,) = asked
    assert (str(request.plan), request.runs, request.division) == ("dp=2", 5, "closed")
    assert request.overrides == (("optimizer.lr", 0.05),)


def test_a_re_run_that_differs_says_so(
    hybridperf: Callable[..., Finished], package: Package, asked: list[RunRequest]
) -> None:
    describe_as_found(package, host_processor_core_count="64", hybridperf=None)

    done = hybridperf("rerun", str(package.folder), "--org", "other")

    assert done.code == 1
    assert "does not confirm the result: it was made on other hardware." in done.out


def test_a_re_run_of_too_few_runs_says_so(
    hybridperf: Callable[..., Finished],
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_runs(request: RunRequest, *, quiet: bool) -> Package:
        again = made(tmp_path / "again", org=request.org, overrides=dict(request.overrides))
        for number in (2, 3, 4):
            for path in again.folder.glob(f"*_{number}.*"):
                path.unlink()
        chain(again)
        return again

    monkeypatch.setattr(rerun, "make_runs", make_runs)

    done = hybridperf("rerun", str(package.folder), "--org", "other", "--runs", "2")

    assert done.code == 1
    assert "does not confirm the result: it has too few runs for a time to train." in done.out


@pytest.mark.parametrize("fact", ["suite_sha256", "trainer_sha256"])
def test_other_code_is_refused_with_the_commit_to_check_out(
    hybridperf: Callable[..., Finished], package: Package, asked: list[RunRequest], fact: str
) -> None:
    edit_manifest(package, 0, code=CODE | {"commit": "c" * 40, fact: "d" * 64})

    done = hybridperf("rerun", str(package.folder), "--org", "other")

    assert done.code == 3
    assert f"expected {fact} dddddddddddd" in done.sentence
    assert f"check out commit {'c' * 40}" in done.sentence
    assert asked == []


def test_a_trainer_that_a_result_merely_names_is_never_started(
    hybridperf: Callable[..., Finished], package: Package, asked: list[RunRequest]
) -> None:
    edit_manifest(package, 0, code=CODE | {"trainer": "antigravity"})

    done = hybridperf("rerun", str(package.folder), "--org", "other")

    assert done.code == 3
    assert "expected trainer antigravity" in done.sentence
    assert asked == []


def test_a_re_run_begins_from_the_weights_of_the_result(
    hybridperf: Callable[..., Finished], package: Package, asked: list[RunRequest], tmp_path: Path
) -> None:
    own = tmp_path / "mine.safetensors"
    own.write_bytes(b"weights")
    facts = {"file": own.name, "sha256": sha256(b"weights").hexdigest()}
    edit_manifest(package, 0, initial=facts)

    without = hybridperf("rerun", str(package.folder), "--org", "other")
    own.write_bytes(b"other weights")
    others = hybridperf("rerun", str(package.folder), "--org", "other", "--initial", str(own))
    assert asked == []
    own.write_bytes(b"weights")
    hybridperf("rerun", str(package.folder), "--org", "other", "--initial", str(own))

    assert without.code == others.code == 2
    assert without.sentence.endswith(
        f"expected weights with SHA-256 {facts['sha256'][:12]}, found none; name the file that the "
        "result began from with --initial."
    )
    assert [request.initial for request in asked] == [own]
