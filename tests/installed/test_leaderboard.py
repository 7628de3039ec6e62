"""The repository of `docs/examples/leaderboard`: its workflow's steps, with a base install."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "leaderboard"
WORKFLOW = EXAMPLE / ".github" / "workflows" / "leaderboard.yml"
SECONDS = 600


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the example, with the results that this project publishes."""
    repository = shutil.copytree(EXAMPLE, tmp_path / "repository")
    shutil.copytree(ROOT / "submissions", repository / "submissions", dirs_exist_ok=True)
    return repository


def steps() -> list[str]:
    """Return the commands of the workflow, each on a line of its own."""
    commands = re.findall(r"^ +- run: (\S.*)$", WORKFLOW.read_text(), re.MULTILINE)
    assert len(commands) == WORKFLOW.read_text().count("run:")
    install, *rest = commands
    assert install == "pip install --requirement requirements.txt"
    return rest


def carry_out(command: str, repository: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=repository,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_workflow_accepts_what_is_published_and_makes_the_same_bytes(repository: Path) -> None:
    for command in steps():
        done = carry_out(command, repository)
        assert (done.returncode, done.stderr) == (0, ""), command

    public = {path.name: path.read_bytes() for path in (repository / "public").iterdir()}
    # By path: this environment imports nothing of the repository.
    assert public == runpy.run_path(str(ROOT / "tests/published.py"))["published_board"]()


def test_the_workflow_refuses_a_result_that_was_edited(repository: Path) -> None:
    log = min((repository / "submissions").rglob("result_0.txt"))
    log.write_text(log.read_text().replace('"value": 0', '"value": 1', 1))

    check, report = (carry_out(command, repository) for command in steps())

    assert check.returncode == 3
    assert "BROKEN" in check.stdout
    assert report.returncode == 3
    assert "left out: " in report.stderr


def test_the_workflow_is_yaml_with_a_job_before_and_one_after_the_merge() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which a base install has not")

    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]

    assert list(jobs) == ["check", "publish"]
    assert jobs["publish"]["needs"] == "check"
    assert jobs["publish"]["if"] == "github.event_name == 'push'"
