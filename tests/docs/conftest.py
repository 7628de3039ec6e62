"""Pages with commands, and what is left where all commands of one have been given as shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Walk:
    """What a reader has who gave the commands of a page."""

    examples: Path  #: the reader's copy
    done: subprocess.CompletedProcess[str]

    @property
    def runs(self) -> Path:
        return self.examples / "runs"

    def say(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Give another command."""
        return _bash(self.examples, 'hybridperf "$@"', *map(str, arguments))


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code in ``language`` that ``docs/<page>.md`` shows."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [code for found, code in _BLOCK.findall(text) if found == language]


def _bash(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script, "bash", *arguments],
        cwd=folder,
        env=os.environ | {"PATH": f"{_programs(folder)}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def _programs(folder: Path) -> Path:
    """Return a folder whose ``hybridperf`` is that of this checkout, installed or not."""
    place = next(each for each in (folder, *folder.parents) if (each / "bin").is_dir()) / "bin"
    program = place / "hybridperf"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from suite.cli import main"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}; sys.exit(main())" "$@"\n')
    program.chmod(0o755)
    return place


def _walk(page: str, home: Path) -> Walk:
    (home / "bin").mkdir()
    shutil.copytree(
        ROOT / "docs/examples", home / "docs/examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = _bash(home, "".join(blocks(page, "sh")))
    return Walk(home / "docs/examples", done)


@pytest.fixture(scope="session")
def model_walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return _walk("your_model", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def framework_walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return _walk("your_framework", tmp_path_factory.mktemp("framework"))
