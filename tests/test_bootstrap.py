from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).parents[1] / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path) -> ModuleType:
    """Return the script as a module that installs into an empty folder."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TOOLS = tmp_path / "tools"  # type: ignore[attr-defined]
    return module


def answer(failing: tuple[str, ...], calls: list[list[str]]) -> object:
    """Return a stand-in for subprocess.run that fails for commands with certain words."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        return subprocess.CompletedProcess(command, int(any(word in command for word in failing)))

    return run


@pytest.mark.parametrize(
    ("failing", "program"),
    [((), "tools/bin/python"), (("venv",), sys.executable)],
    ids=["with venv", "with pip alone, as in Debian's system Python without python3-venv"],
)
def test_tox_runs_the_environment_asked_for(
    bootstrap: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    failing: tuple[str, ...],
    program: str,
) -> None:
    calls: list[list[str]] = []
    bootstrap.TOOLS.mkdir()
    monkeypatch.setattr(subprocess, "run", answer(failing, calls))
    monkeypatch.chdir(tmp_path)

    status = bootstrap.main(["tests", "-k", "minimax"])

    assert status == 0
    assert calls[-1][0].endswith(program)
    assert calls[-1][1:] == ["-m", "tox", "run", "-e", "tests", "--", "-k", "minimax"]
    assert ("--target" in calls[-2]) == bool(failing)


def test_a_python_with_neither_gets_one_sentence(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", answer(("venv", "pip"), []))

    status = bootstrap.main(["tests"])

    assert status == 4
    assert capsys.readouterr().out.splitlines() == [bootstrap.HELP]
    assert "python3-venv" in bootstrap.HELP


def test_the_tools_are_installed_once(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", answer((), calls))
    bootstrap.TOOLS.mkdir()
    bootstrap.main(["lint"])
    calls.clear()

    bootstrap.main(["lint"])

    assert len(calls) == 1
