"""``hybridperf sign``: what it signs, and what it refuses to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.chain import SUMS
from hybridperf.rules.check import check_path
from tests.evidence import chain, describe_as_found, list_key, make_key
from tests.packages import edit_manifest, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package
    from tests.run.conftest import Finished


@pytest.fixture
def package(tmp_path: Path) -> Package:
    package = write_result(tmp_path / "out")
    describe_as_found(package)
    chain(package)
    return package


def test_a_signature_is_shown_where_the_organisation_has_a_key(
    hybridperf: Callable[..., Finished], package: Package, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "keys", "acme")

    done = hybridperf("sign", str(package.folder), "--key", str(key))
    before = check_path(package.root)
    list_key(package.root, "acme", key)
    after = check_path(package.root)

    assert done.code == 0
    assert "the signature cannot be verified yet" in done.out
    assert [finding.rule for finding in before.findings] == ["result.signature"]
    assert before.valid
    assert before.results[0].trust.evidence == ""
    assert after.findings == ()
    assert after.results[0].trust.evidence.startswith("signed by ED25519 SHA256:")


def test_a_result_is_signed_again_after_more_runs(
    hybridperf: Callable[..., Finished], package: Package, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "keys", "acme")
    list_key(package.root, "acme", key)
    assert hybridperf("sign", str(package.folder), "--key", str(key)).code == 0
    edit_manifest(package, 2, command="hybridperf run resnet/laptop")
    chain(package)
    assert not check_path(package.root).valid

    done = hybridperf("sign", str(package.folder), "--key", str(key))

    assert done.code == 0
    assert check_path(package.root).valid


def test_what_breaks_a_rule_is_not_signed(
    hybridperf: Callable[..., Finished], package: Package, tmp_path: Path
) -> None:
    edit_manifest(package, 2, seed=1)

    done = hybridperf("sign", str(package.folder), "--key", str(make_key(tmp_path / "k", "acme")))

    assert done.code == 3
    assert not (package.folder / f"{SUMS}.sig").exists()


def test_what_was_edited_since_it_was_sealed_is_not_signed(
    hybridperf: Callable[..., Finished], package: Package, tmp_path: Path
) -> None:
    path = package.folder / "result_2.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))

    done = hybridperf("sign", str(package.folder), "--key", str(make_key(tmp_path / "k", "acme")))

    assert done.code == 3
    assert "expected its content as it was sealed" in done.err


def test_a_key_that_is_none_is_refused_in_one_sentence(
    hybridperf: Callable[..., Finished], package: Package, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_text("no key")

    done = hybridperf("sign", str(package.folder), "--key", str(path))

    assert done.code == 4
    assert "expected a signature by" in done.sentence
    assert not (package.folder / f"{SUMS}.sig").exists()
