"""Forged results, each with the verification level that it is expected to stop at.

The result that they are made from was written by hand too, and reaches *re-scored*: that a liar who
leaves nothing out is stopped by a re-run alone is what docs/trust.md says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli import main
from hybridperf.log import keys
from hybridperf.log.chain import SUMS
from hybridperf.log.package import Package, read_result
from hybridperf.rules.check import check_path, judge_result
from hybridperf.rules.evidence import (
    RERUN,
    RESULT,
    Attestation,
    attestation_file,
    sign_file,
    subject_of,
)
from hybridperf.rules.levels import LEVELS
from hybridperf.score.validity import Judgement
from tests.evidence import chain, describe_as_found, keep_models, list_key, make_key
from tests.hostile.forgeries import FORGERIES, Forgery
from tests.packages import change, edit_log, edit_manifest, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.rules.evidence import Trust


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    package = write_result(root)
    keep_models(package)
    describe_as_found(package)
    chain(package)
    return root


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Package:
    root = shutil.copytree(made, tmp_path / "copy")
    return Package(root, "acme", "laptop", "resnet-laptop")


def trust_in(package: Package) -> Trust:
    """Return what ``check`` says of one result of a folder."""
    results = {each.package.name: each.trust for each in check_path(package.root).results}
    return results[package.name]


def test_a_liar_who_writes_everything_stops_where_another_runs_it_again(package: Package) -> None:
    trust = trust_in(package)

    assert (trust.level, trust.evidence) == ("re-scored", "landlock ABI 7")
    assert trust.lacks.startswith("re-run requires a re-run by another organisation")
    assert check_path(package.root).findings == ()


@pytest.mark.parametrize("forgery", FORGERIES, ids=[forgery.name for forgery in FORGERIES])
def test_a_forgery_stops_at_its_level(package: Package, forgery: Forgery) -> None:
    forgery.apply(package)

    trust = trust_in(package)

    assert trust.level == forgery.level, trust.lacks
    assert forgery.lacks in trust.lacks


def test_there_are_forgeries_for_every_level_below_the_last_two() -> None:
    names = [level.name for level in LEVELS]

    assert {forgery.level for forgery in FORGERIES} == set(names[:3])
    assert len({forgery.name for forgery in FORGERIES}) == len(FORGERIES) >= 30


def test_a_signature_stands_beside_the_level(package: Package, tmp_path: Path) -> None:
    key = make_key(tmp_path / "keys", "acme")
    list_key(package.root, "acme", key)
    sign_file(package.folder / SUMS, key, RESULT)

    trust = trust_in(package)

    assert trust.level == "re-scored"
    assert "signed by ED25519 SHA256:" in trust.evidence
    assert check_path(package.root).findings == ()


def test_what_cannot_be_recounted_here_keeps_its_level_and_says_so(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("levels", "evidence_rules"):
        monkeypatch.setattr(f"hybridperf.rules.{module}.labels_here", lambda *_: None)

    trust = trust_in(package)

    words = "not recounted here: the data of resnet/laptop is not on this machine"
    assert (trust.level, trust.unverified) == ("re-scored", words)
    assert words not in trust.words
    for command in ("check", "score"):
        assert main([command, str(package.root)]) == 0
        assert words in " ".join(capsys.readouterr().out.split())


def test_a_signature_that_cannot_be_verified_here_says_so_and_wins_nothing(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_key(package.root, "acme", key := make_key(tmp_path / "keys", "acme"))
    sign_file(package.folder / SUMS, key, RESULT)
    verified = trust_in(package)

    monkeypatch.setenv("PATH", str(tmp_path))
    named = trust_in(package)

    assert check_path(package.root).findings == ()
    assert (named.level, named.evidence) == (verified.level, verified.evidence)
    assert verified.unverified == ""
    assert named.unverified == "signature not verified here: ssh-keygen is not installed"
    traces = judge_result(read_result(package)).traces
    assert {trace.right for trace in traces} == {(True, False)}
    other = (package.folder / SUMS).with_suffix(".sig")
    other.write_text("-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n")
    other.rename(package.folder / f"{SUMS}.sig")
    assert "no key of acme has made it" in check_path(package.root).findings[0].found


@pytest.mark.parametrize("signed", ["the original", "the copy", "neither"])
def test_of_two_claims_the_signed_one_is_the_original(
    package: Package, tmp_path: Path, signed: str
) -> None:
    shutil.copytree(package.root / "acme", package.root / "other")
    copy = Package(package.root, "other", package.system, package.benchmark)
    for number in range(5):
        edit_log(copy, number, lambda text: change(text, keys.SUBMISSION_ORG, value="other"))
        edit_manifest(copy, number, org="other")
    description = json.loads(copy.system_file.read_text()) | {"submitter": "other"}
    copy.system_file.write_text(json.dumps(description))
    digest = hashlib.sha256(copy.system_file.read_bytes()).hexdigest()
    for number in range(5):
        edit_manifest(copy, number, system={"path": "laptop.json", "sha256": digest})
    chain(copy)
    if signed != "neither":
        claimed = package if signed == "the original" else copy
        list_key(package.root, claimed.org, key := make_key(tmp_path / "keys", claimed.org))
        sign_file(claimed.folder / SUMS, key, RESULT)

    found = {result.package.org: result.judgement for result in check_path(package.root).results}

    valid, broken, disputed = Judgement.VALID, Judgement.BROKEN, Judgement.DISPUTED
    assert (
        found
        == {
            "the original": {"acme": valid, "other": broken},
            "the copy": {"acme": broken, "other": valid},
            "neither": {"acme": disputed, "other": disputed},
        }[signed]
    )


# Re-runs.


def confirm(package: Package, key: Path | None, by: str = "other", **changes: Any) -> None:
    """Write and sign the statement of an organisation that confirms the result."""
    statement = Attestation(
        format=1,
        by=by,
        subject=subject_of(package),
        runs=5,
        commit="c" * 40,
        rerun_sums_sha256="d" * 64,
        quality=True,
        samples=True,
        samples_p_value=0.4,
        like_hardware=True,
        time=True,
        time_s=12.0,
    )
    path = attestation_file(package, by)
    path.write_text(json.dumps(dataclasses.replace(statement, **changes).as_json()))
    if key is not None:
        sign_file(path, key, RERUN)


@pytest.fixture
def others_key(package: Package, tmp_path: Path) -> Path:
    """The key of an organisation that runs results again."""
    key = make_key(tmp_path / "keys", "other")
    list_key(package.root, "other", key)
    return key


def test_a_signed_re_run_by_another_organisation_is_the_last_level(
    package: Package, others_key: Path
) -> None:
    confirm(package, others_key)

    trust = trust_in(package)

    assert (trust.level, trust.evidence, trust.lacks) == ("re-run", "by other", "")
    assert check_path(package.root).findings == ()


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"by": "acme"}, "another organisation than"),
        ({"by": "third"}, "no key of third has made it"),
        ({"quality": False}, "did not reach the target"),
        ({"samples": False}, "samples to target differ"),
        ({"like_hardware": False}, "other hardware"),
        ({"time": False}, "time to train differs"),
        ({"system": "other"}, "is of another"),
        ({"sums_sha256": "0" * 64}, "is of another"),
    ],
)
def test_a_re_run_that_does_not_confirm_lifts_nothing(
    package: Package, others_key: Path, changes: dict[str, Any], lacks: str
) -> None:
    if changes.keys() & {"system", "sums_sha256"}:
        changes = {"subject": dataclasses.replace(subject_of(package), **changes)}
    confirm(package, others_key, **changes)

    trust = trust_in(package)

    assert trust.level == "re-scored"
    assert lacks in trust.lacks


def test_a_statement_without_a_signature_lifts_nothing(package: Package, others_key: Path) -> None:
    confirm(package, None)

    trust = trust_in(package)

    assert trust.level == "re-scored"
    assert "there is no rerun_other.json.sig" in trust.lacks


def test_a_statement_edited_after_it_was_signed_lifts_nothing(
    package: Package, others_key: Path
) -> None:
    confirm(package, others_key, time=False)
    path = attestation_file(package, "other")
    path.write_text(path.read_text().replace('"time": false', '"time": true'))

    assert trust_in(package).level == "re-scored"


def test_a_re_run_does_not_lift_what_lacks_a_level_below(
    package: Package, others_key: Path
) -> None:
    (forgery,) = (each for each in FORGERIES if each.name == "a trainer with all permissions")
    forgery.apply(package)
    confirm(package, others_key)

    assert trust_in(package).level == "chained"
