"""A result of real runs is made again from its commit by another organisation, end to end.

The code is a small repository of its own, in which the smallest task ends after its first epochs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_results
from hybridperf.system.landlock import why_no_landlock
from tests.evidence import list_key, make_key

if TYPE_CHECKING:
    from hybridperf.log.package import Package

ROOT = Path(__file__).parents[1]
PACKAGES = ("suite/hybridperf", "reference_impls/hybridperf_reference")
TASK = "vgg/laptop"
RUNS, TARGET = 3, 0.15  # the fewest that have a time to train; a tenth is chance
MOST_RERUNS = 3

pytestmark = [
    pytest.mark.exhaustive,  # six runs of the reference trainer; tests/cli/test_rerun.py has none
    pytest.mark.skipif(bool(why_no_landlock()), reason=why_no_landlock() or "none"),
]


def git(repository: Path, *arguments: str) -> str:
    author = ("-c", "user.name=Author", "-c", "user.email=author@acme.example")
    command = ["git", "-C", str(repository), *author, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def hybridperf(repository: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Carry a command out with the code of ``repository``."""
    program = "import sys; from hybridperf.cli import main; sys.exit(main())"
    places = [str(repository / package.partition("/")[0]) for package in PACKAGES]
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository of harness and trainers with a shorter task."""
    repository = tmp_path / "repository"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, repository / package, ignore=ignored)
    task = repository / f"suite/hybridperf/tasks/{TASK}.toml"
    text = task.read_text().partition("# Twenty runs")[0]  # of the task as it was
    for before, after in (
        ("target = 0.985", f"target = {TARGET}"),
        ("count = 5", f"count = {RUNS}"),
    ):
        assert text.count(f"\n{before}\n") == 1
        text = text.replace(before, after)
    task.write_text(text)
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Shorter")
    return repository


@pytest.fixture
def published(repository: Path, tmp_path: Path) -> Package:
    """Return the signed result of an organisation."""
    out = tmp_path / "published"
    done = hybridperf(repository, "run", TASK, "--plan", "dp=1", "--out", out, "--org", "acme")
    assert done.returncode == 0, done.stderr
    (package,) = find_results(out)
    key = make_key(tmp_path / "keys", "acme")
    list_key(package.root, "acme", key)
    signed = hybridperf(repository, "sign", package.folder, "--key", key)
    assert signed.returncode == 0, signed.stderr
    return package


def level(repository: Path, package: Package) -> tuple[str, str]:
    """Return the verification level of the result, and its evidence."""
    done = hybridperf(repository, "check", package.root, "--json")
    (result,) = json.loads(done.stdout)["results"]
    assert done.returncode == 0, done.stdout
    return result["level"], result["evidence"]


def test_a_result_is_confirmed_from_its_commit_by_another_organisation(
    repository: Path, published: Package, tmp_path: Path
) -> None:
    manifest = json.loads((published.folder / "result_0.json").read_text())
    commit = manifest["code"]["commit"]
    assert commit == git(repository, "rev-parse", "HEAD").strip()
    assert level(repository, published)[0] == "re-scored"
    key = make_key(tmp_path / "keys", "other")
    list_key(published.root, "other", key)
    clone = tmp_path / "clone"
    git(repository, "clone", "--quiet", ".", str(clone))
    arguments = ("rerun", published.folder, "--org", "other", "--key", key, "--out")

    (clone / "suite/hybridperf/later.py").touch()
    refused = hybridperf(clone, *arguments, tmp_path / "refused")
    git(clone, "clean", "--quiet", "--force", "-x")
    git(clone, "checkout", "--quiet", commit)
    for number in range(MOST_RERUNS):
        done = hybridperf(clone, *arguments, tmp_path / f"again_{number}")
        statement = json.loads((published.folder / "rerun_other.json").read_text())
        if statement["time"]:
            break  # else the machine was busier than before

    assert refused.returncode == 3
    assert f"check out commit {commit}" in refused.stderr
    held = {name: statement[name] for name in ("quality", "samples", "like_hardware")}
    assert held == dict.fromkeys(held, True), statement
    assert (statement["runs"], statement["commit"]) == (RUNS, commit)
    if not statement["time"]:
        pytest.skip(f"this machine is not as busy as it was: {done.stdout.splitlines()[-1]}")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Confirmed.")
    name, evidence = level(clone, published)
    assert name == "re-run"
    assert evidence.startswith("by other")
