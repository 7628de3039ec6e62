#!/usr/bin/env python3
"""Set up everything and run one of tox.ini's environments: ``python3 bootstrap.py benchmark``.

Needs nothing but Python: works with a system Python that refuses ``pip install``, since it
installs tox into a folder of this checkout only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TOOLS = ROOT / ".tox" / "tools"
PACKAGES = ("tox>=4.23", "tox-uv>=1.20")
CONSTRAINTS = ROOT / "constraints.txt"
HELP = (
    "bootstrap.py: this Python has neither venv nor pip; install one of them first, on Debian and "
    "Ubuntu with 'sudo apt install python3-venv'."
)


def main(arguments: list[str]) -> int:
    """Make tox available and hand over to it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - older ones get a sentence
        print(f"bootstrap.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}.")
        return 4
    command = find_tox() or install_with_venv() or install_with_pip()
    if command is None:
        print(HELP)
        return 4
    os.chdir(ROOT)
    environment = os.environ | {"PYTHONPATH": str(TOOLS)} if (TOOLS / "tox").is_dir() else None
    run = [*command, "run", "-e", arguments[0] if arguments else "benchmark"]
    rest = ["--", *arguments[1:]] if arguments[1:] else []
    return subprocess.run([*run, *rest], env=environment, check=False).returncode


def find_tox() -> list[str] | None:
    """Return the tox that an earlier call installed."""
    program = TOOLS / "bin" / "python"
    if (TOOLS / "done").exists():
        return [str(program), "-m", "tox"] if program.exists() else [sys.executable, "-m", "tox"]
    return None


def install_with_venv() -> list[str] | None:
    """Install tox into a virtual environment, where this Python can make one."""
    venv = [sys.executable, "-m", "venv", "--clear", str(TOOLS)]
    made = subprocess.run(venv, capture_output=True, check=False)
    program = str(TOOLS / "bin" / "python")
    return [program, "-m", "tox"] if made.returncode == 0 and install(program) else None


def install_with_pip() -> list[str] | None:
    """Install tox beside this Python's own packages, where it has pip but no venv."""
    done = install(sys.executable, "--target", str(TOOLS))
    return [sys.executable, "-m", "tox"] if done else None


def install(program: str, *options: str) -> bool:
    """Install tox with the pip of ``program``, and note that it is there."""
    pip = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--constraint", str(CONSTRAINTS), *options, *PACKAGES], check=False
    )
    if done.returncode == 0:
        (TOOLS / "done").touch()
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
