"""Help, refusals and completion."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suite.cli import main
from suite.cli.parser import COMMANDS
from suite.systems.describe import describe
from suite.tasks.data.digits import Digits
from suite.tasks.registry import task_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runs.conftest import Finished

HEAVY = {"torch", "numpy", "pandas", "sklearn", "rich", "psutil", "jinja2"}
ASK_HELP = """
import sys
from suite.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print("imported:", *sys.modules)
"""


def test_help_of_the_whole_names_every_command(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("--help")
    assert done.code == 0
    assert all(f"\n    {name}" in done.out for name in COMMANDS)
    assert "exit status: 0 ok" in done.out


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_comes_at_once_with_an_example(command: list[str]) -> None:
    took_s = []
    for _ in range(3):
        start_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", ASK_HELP, *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        took_s.append(time.monotonic() - start_s)
    assert statistics.median(took_s) < 1.0  # 0.1 where nothing else runs
    help_, _, imported = done.stdout.partition("imported:")
    assert not HEAVY & set(imported.split())
    assert "exit status:" in help_
    if command:
        assert f"examples:\n  {'eval' if command == ['completion'] else 'hybridperf'}" in help_
        assert f"hybridperf {command[0]}" in help_.partition("examples:")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("", 2, "required: command; see 'hybridperf --help'."),
        ("frob", 2, "invalid choice: 'frob'"),
        ("run", 2, "required: task; see 'hybridperf run --help'."),
        ("run resnet/laptop --frob", 2, "unrecognized arguments: --frob"),
        ("run resnet/laptop --pla dp=1", 2, "unrecognized arguments: --pla dp=1"),
        ("run resnet/laptop --runs 0", 2, "expected a whole number from 1 to 1000, found '0'"),
        ("run resnet/laptop --runs ٣", 2, "expected a whole number from 1 to 1000"),
        ("run resnet/laptpo", 2, "did you mean resnet/laptop"),
        ("run ../../pyproject", 2, "expected the name of a task"),
        ("run resnet/laptop --plan dp=1,pq=2", 2, "expected keys out of dp, "),
        ("run resnet/laptop --plan dpp=2", 2, "found 'dpp'; did you mean"),
        ("run resnet/laptop --plan dp=4000", 2, "lower dp or pp"),
        ("run resnet/laptop --plan pp=7", 2, "at most 6 stages"),
        ("run resnet/laptop --plan pp=2,microbatches=5", 2, "choose dp and microbatches from its"),
        ("run resnet/laptop --plan dp=2,schedule=1f1b", 2, "no schedule where pp=1"),
        ("run resnet/laptop --set optimizer.lrr=1", 2, "did you mean optimizer.lr?"),
        ("run resnet/laptop --set optimizer.lr", 2, "expected key=value"),
        ("run resnet/laptop --set optimizer.lr=much", 2, "expected a value of type float"),
        ("run resnet/laptop --set optimizer.lr=nan", 2, "expected a finite number"),
        ("run resnet/laptop --set optimizer.lr=1e999", 2, "expected a finite number"),
        ("run resnet/laptop --set optimizer.momentum=0.5", 2, "fixed in the closed division"),
        ("run resnet/laptop --set optimizer.lr=0.0001", 2, "a multiple of 0.001"),
        ("run resnet/laptop --set training.global_batch_size=0", 2, "from 1 to 1195, found 0"),
        ("run resnet/laptop --org a/b", 2, "found 'a/b'; choose another --org"),
        ("run resnet/laptop --system ..", 2, "found '..'; choose another --system"),
        ("run resnet/laptop --trainer nope", 2, "a package with the modules train and predict"),
        ("run resnet/laptop --out /proc/x", 4, "choose another folder with --out"),
        ("run resnet/laptop --out /dev/null", 4, "found Not a directory; choose another folder"),
        ("check /nowhere", 4, "found no such file or folder"),
        ("check /dev/zero", 4, "found no results"),
        ("score /nowhere", 4, "make some with 'hybridperf run'"),
        ("report /nowhere", 4, "make one with 'hybridperf run'"),
        ("rcp", 2, "required: action, task; see 'hybridperf rcp --help'."),
        ("rcp break resnet/laptop", 2, "invalid choice: 'break'"),
        ("completion tcsh", 2, "invalid choice: 'tcsh'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    hybridperf: Callable[..., Finished], arguments: str, code: int, sentence: str
) -> None:
    done = hybridperf(*arguments.split())
    assert done.code == code
    assert sentence in done.sentence
    assert done.err.count("\n") == 1
    assert done.err.endswith((".\n", "?\n", "shows all.\n"))


def test_missing_and_wrong_data_are_refused_before_anything_starts(
    hybridperf: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digits.csv.gz"
    monkeypatch.setattr(Digits, "files", lambda *_: [path])
    run = ("run", "resnet/laptop", "--out", str(tmp_path / "out"))
    for content in (None, b"", b"no gzip", gzip.compress(b"other data")):
        if content is not None:
            path.write_bytes(content)
        done = hybridperf(*run)
        assert done.code == 4
        assert "reinstall scikit-learn" in done.sentence
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = hybridperf(*run)
    assert done.code == 4
    assert "install it with 'pip install scikit-learn'" in done.sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
@pytest.mark.parametrize("command", ["run resnet/laptop --out", "check", "score", "report"])
def test_a_folder_of_somebody_else_is_refused(command: str) -> None:
    for name in COMMANDS:  # whoever it becomes may not be able to read the modules
        importlib.import_module(f"suite.cli.commands.{name}")
    describe()
    closed = Path("/tmp/hybridperf_closed_folder")
    closed.mkdir(mode=0o700, exist_ok=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = 99
        try:
            os.seteuid(65534)
            code = main([*command.split(), str(closed / "inside")])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    closed.rmdir()
    assert os.waitstatus_to_exitcode(status) == 4, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("hybridperf: ")
    assert "found Permission denied; choose" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command_and_option(
    hybridperf: Callable[..., Finished], shell: str
) -> None:
    done = hybridperf("completion", shell)
    assert done.code == 0
    assert all(name in done.out for name in [*COMMANDS, "--plan", "resnet/laptop", "--json"])
    if executable := shutil.which(shell):
        subprocess.run([executable, "-n"], input=done.out, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["ru"], {"run"}),
        (["re"], {"report"}),
        (["run", "resnet/l"], {"resnet/laptop"}),
        (["rcp", "mak"], {"make"}),
        (["run", "--p"], {"--plan"}),
        (["run", "resnet/laptop", "--di"], {"--division"}),
        (["completion", ""], {"--help", "-h", "bash", "zsh", "fish"}),
        (["check", "pyproj"], {"pyproject.toml"}),
    ],
)
def test_bash_completes(
    hybridperf: Callable[..., Finished], words: list[str], completed: set[str]
) -> None:
    script = hybridperf("completion", "bash").out
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=(hybridperf {quoted}); COMP_CWORD={len(words)}; _hybridperf; "
    ask += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}{ask}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == completed


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    list_ = f"{sys.executable} -m tests.runs.driver list --json"
    done = subprocess.run(
        ["bash", "-c", f'{list_} | head -c 1; echo " ${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.stderr) == ("[ 0\n", "")


def test_version(hybridperf: Callable[..., Finished]) -> None:
    import suite

    assert hybridperf("--version").out == f"hybridperf {suite.__version__}\n"


def test_json_is_json(hybridperf: Callable[..., Finished], finished_run: Path) -> None:
    tasks = {task["name"]: task for task in json.loads(hybridperf("list", "--json").out)}
    assert list(tasks) == task_names()
    assert tasks["resnet/laptop"]["hyperparameters"]["optimizer.lr"] == 0.1
    diagnoses = json.loads(hybridperf("doctor", "--json", "--out", str(finished_run)).out)
    assert all(each["status"] in {"ok", "missing", "optional"} for each in diagnoses)
    (score,) = json.loads(hybridperf("score", str(finished_run), "--json").out)
    assert score["benchmark"] == "resnet/laptop"
    checked = hybridperf("check", str(finished_run), "--json")
    assert checked.code == 3
    verdict = json.loads(checked.out)
    assert [finding["rule"] for finding in verdict["findings"]] == ["result.run_count"]
    assert verdict["valid"] is False


def test_the_system_as_json(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("system", "--json")
    assert done.code == 0
    assert "hybridperf" in json.loads(done.out)


def test_commands_say_it_for_people_too(
    hybridperf: Callable[..., Finished], finished_run: Path, tmp_path: Path
) -> None:
    assert "98.0% top-1 accuracy" in hybridperf("list").out
    assert "1 of 5" in hybridperf("score", str(finished_run)).out
    checked = hybridperf("check", str(finished_run))
    assert checked.code == 3
    assert "1 x result.run_count" in checked.out
    assert "INVALID by hybridperf-1.0, 1 log checked" in checked.out
    pages = hybridperf("report", str(finished_run), "--out", str(tmp_path / "pages"))
    assert pages.code == 0
    assert all(Path(line).is_file() for line in pages.out.split())
