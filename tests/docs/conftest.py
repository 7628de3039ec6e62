"""Pages with commands, and what is left where all commands of one have been given as shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from hybridperf.run.provenance import file_sha256

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "docs/examples"
#: pages whose shell blocks are all executed, but the marked ones, by the test of their name
EXECUTED_PAGES: Final = ("claims", "planning", "quick_start", "your_framework", "your_model")
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Walk:
    """What a reader has who gave the commands of a page."""

    examples: Path  #: the reader's copy
    script: str  #: the commands
    done: subprocess.CompletedProcess[str]

    @property
    def runs(self) -> Path:
        return self.examples / "runs"

    def manifests(self) -> list[dict[str, Any]]:
        """Return the manifest of each run."""
        return [json.loads(path.read_text()) for path in sorted(self.runs.rglob("result_*.json"))]

    def assert_task_beside_results(self, package: str) -> None:
        """The task of the example ``package`` is copied to its results, and hashed."""
        own = EXAMPLES / package / "task.toml"
        copies = list(self.runs.rglob("task.toml"))
        assert {path.read_bytes() for path in copies} == {own.read_bytes()}
        for path in copies:
            assert f"{file_sha256(own)}  task.toml" in (path.parent / "SHA256SUMS").read_text()

    def say(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Give another command."""
        return bash(self.examples, 'hybridperf "$@"', *map(str, arguments))


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code in ``language`` that ``docs/<page>.md`` shows without a mark."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [code for found, code in _BLOCK.findall(text) if found == language]


def assert_code_is_of(package: str, page: str) -> None:
    """The code on a page is that of its example."""
    files = [path.read_text() for path in (EXAMPLES / package).iterdir() if path.is_file()]
    shown = [code for language in ("python", "toml") for code in blocks(page, language)]
    assert shown
    assert [code for code in shown if not any(code in text for text in files)] == []


def bash(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in ``folder``, whose ``hybridperf`` is of this checkout."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script, "bash", *arguments],
        cwd=folder,
        env=os.environ | {"PATH": f"{_programs(folder)}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def _programs(folder: Path) -> Path:
    """Return a folder whose ``hybridperf`` is that of this checkout, installed or not."""
    place = next(each for each in (folder, *folder.parents) if (each / "bin").is_dir()) / "bin"
    program = place / "hybridperf"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hybridperf.cli import main"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}; sys.exit(main())" "$@"\n')
    program.chmod(0o755)
    return place


def walk(script: str, home: Path) -> Walk:
    """Give the commands of ``script`` in the folder ``home``, which has the examples."""
    (home / "bin").mkdir()
    shutil.copytree(
        ROOT / "docs/examples", home / "docs/examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    return Walk(home / "docs/examples", script, bash(home, script))


def plans(script: str) -> list[str]:
    """Return the plans that a script names."""
    return re.findall(r"--plan (\S+)", script)


_MODEL: Final = "".join(blocks("your_model", "sh"))
_FIRST, *_OTHERS = plans(_MODEL)


@pytest.fixture(
    scope="session",
    params=[_FIRST, *(pytest.param(plan, marks=pytest.mark.exhaustive) for plan in _OTHERS)],
)
def model_walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Give the commands of the page but those that train under another plan."""
    lines = [
        line for line in _MODEL.splitlines(keepends=True) if not {*plans(line)} - {request.param}
    ]
    return walk("".join(lines), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def framework_walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walk("".join(blocks("your_framework", "sh")), tmp_path_factory.mktemp("framework"))
