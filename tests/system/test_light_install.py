"""Without what `hybridperf[train]` installs, results are judged and machines described."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.packages import write_result

if TYPE_CHECKING:
    from pathlib import Path

# Stands for an environment in which these packages are not installed.
_BARE = """
import importlib.abc, importlib.metadata, sys
GONE = {"torch", "torchvision", "pandas", "pyarrow", "sklearn", "datasets", "transformers",
        "tokenizers", "safetensors", "PIL"}
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
found = importlib.metadata.version
def version(name):
    if name in GONE | {"scikit-learn", "pillow"}:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
from hybridperf.cli import main
sys.exit(main(sys.argv[1:]))
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _BARE, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["check", "score"])
def test_results_are_judged(command: str, tmp_path: Path) -> None:
    write_result(tmp_path)

    done = _run(command, str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")


def test_the_machine_is_described() -> None:
    done = _run("system")

    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_says_what_is_missing_and_how_to_get_it() -> None:
    done = _run("doctor")

    assert done.returncode == 4
    assert "Traceback" not in done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    assert "pip install 'hybridperf[train]'" in words
    assert "processor" in words  # it examined everything, to the end
