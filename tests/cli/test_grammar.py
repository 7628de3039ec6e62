"""Help, refusals and completion."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from hybridperf import __version__
from hybridperf.cli import main
from hybridperf.cli.commands import list as list_command
from hybridperf.cli.main import COMMANDS
from hybridperf.errors import ExitCode, UserError
from hybridperf.run import profiles
from hybridperf.system.describe import describe
from hybridperf.system.doctor import examine_packages
from hybridperf.tasks.data.digits import Digits
from hybridperf.tasks.registry import task_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.conftest import Finished

HEAVY = {"torch", "pandas", "sklearn"}
LAZY = HEAVY | {"numpy", "rich", "psutil", "jinja2"}
ASK_HELP = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
from hybridperf.cli import main
said, imported = [], []
for command in json.loads(sys.argv[1]):
    with redirect_stdout(StringIO()) as out:
        try:
            main([*command, "--help"])
        except SystemExit as end:
            assert not end.code
    said.append(out.getvalue())
    imported.append(list(sys.modules))
print(json.dumps({"said": said, "imported": imported}))
"""


def test_help_of_the_whole_names_every_command(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("--help")
    assert done.code == 0
    assert all(f"\n    {name}" in done.out for name in COMMANDS)
    assert "exit status: 0 ok" in done.out


@pytest.mark.parametrize("arguments", ["", "help"])
def test_a_bare_command_and_help_are_the_help_of_the_whole(
    hybridperf: Callable[..., Finished], arguments: str
) -> None:
    assert hybridperf(*arguments.split()) == hybridperf("--help")


def test_help_of_a_command_is_its_help(hybridperf: Callable[..., Finished]) -> None:
    done = hybridperf("help", "run")
    assert done == hybridperf("run", "--help")
    assert done.code == 0
    assert "docs/plans.md has its keys" in " ".join(done.out.split())


def test_list_says_how_long_a_run_takes_and_whether_it_can_run_here(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYBRIDPERF_DATA", raising=False)
    monkeypatch.setattr(list_command, "project_run", lambda _: {"step_s": 0.01})
    tasks = {task["name"]: task for task in json.loads(hybridperf("list", "--json").out)}

    rows = {line.split()[0]: line for line in hybridperf("list").out.splitlines() if line}

    assert tasks["resnet/laptop"]["missing"] is None
    assert tasks["resnet/laptop"]["projected_run_s"] == pytest.approx(2.9, abs=0.5)
    assert rows["resnet/laptop"].rstrip().endswith("s   scikit-learn        yes")
    assert "name it with --data-dir" in tasks["vit/cluster"]["missing"]
    assert rows["vit/cluster"].rstrip().endswith("≤ 10 d   ImageNet-1k         no")


def test_list_says_no_where_packages_are_missing(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_command, "torch_folder", lambda: None)

    (task, *_) = json.loads(hybridperf("list", "--json").out)

    assert "expected the package torch" in task["missing"]


@pytest.mark.parametrize("width", ["80", "400"])
def test_the_system_fits_the_terminal_and_a_hundred_columns(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)

    lines = hybridperf("system").out.splitlines()

    assert max(map(len, lines)) <= min(100, int(width))
    # A rule is no longer than a line of the table.
    assert len(lines[1]) <= max(len(line) for line in (lines[0], *lines[2:]))


@pytest.mark.parametrize(
    "command", ["plan resnet/laptop --devices 1", "run resnet/laptop --dry-run"]
)
def test_what_is_measured_is_said_before(
    hybridperf: Callable[..., Finished],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise UserError("stopped.", ExitCode.ENVIRONMENT)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profiles, "_measure", refuse)

    done = hybridperf(*command.split())

    assert done.err.splitlines() == [
        "hybridperf: resnet/laptop: measuring units and links on 1 ranks, for up to minutes",
        "hybridperf: stopped.",
    ]


def test_doctor_lists_a_package_once() -> None:
    names = [each.name for each in examine_packages()]
    assert len(names) == len(set(names))
    assert "pyarrow" in names


def test_help_comes_at_once_with_an_example() -> None:
    commands = [[], *([name] for name in COMMANDS)]
    done = subprocess.run(
        [sys.executable, "-c", ASK_HELP, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert not LAZY & set(answer["imported"][0])
    assert not HEAVY & set(answer["imported"][-1])
    for command, said in zip(commands, answer["said"], strict=True):
        assert "exit status:" in said
        if command:
            begin = "eval" if command == ["completion"] else "hybridperf"
            assert f"examples:\n  {begin}" in said
            assert f"hybridperf {command[0]}" in said.partition("examples:")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("frob", 2, "expected a command, found 'frob'; 'hybridperf --help' lists them."),
        ("chekc runs", 2, "expected a command, found 'chekc'; did you mean check?"),
        ("compare a b --format csv", 2, "invalid choice: 'csv'"),
        ("run", 2, "required: task; see 'hybridperf run --help'."),
        ("run resnet/laptop --frob", 2, "unrecognized arguments: --frob"),
        ("run resnet/laptop --pla dp=1", 2, "unrecognized arguments: --pla dp=1"),
        (
            "run resnet/laptop --run 3",
            2,
            "--run 3; did you mean --runs? See 'hybridperf run --help'.",
        ),
        ("run resnet/laptop --plam=dp=1", 2, "did you mean --plan? See 'hybridperf run --help'."),
        ("run resnet/laptop surplus", 2, "arguments: surplus; see 'hybridperf run --help'."),
        ("help chekc", 2, "expected a command, found 'chekc'; did you mean check?"),
        ("run resnet/laptop --runs 0", 2, "expected a whole number from 1 to 1000, found '0'"),
        ("run resnet/laptop --runs ٣", 2, "expected a whole number from 1 to 1000"),
        ("run resnet/laptpo", 2, "did you mean resnet/laptop"),
        ("run ../../pyproject", 2, "expected the name of a task"),
        ("run resnet/laptop --plan dp=1,pq=2", 2, "expected one of the keys dp, "),
        ("run resnet/laptop --plan dpp=2", 2, "found 'dpp'; did you mean"),
        ("run resnet/laptop --plan dp=4000", 2, "lower dp or pp"),
        ("run resnet/laptop --plan pp=7", 2, "at most 6 stages"),
        ("run resnet/laptop --plan pp=2,microbatches=5", 2, "choose dp and microbatches from its"),
        ("run resnet/laptop --plan dp=2,schedule=1f1b", 2, "no schedule where pp=1"),
        ("run resnet/laptop --set optimizer.lrr=1", 2, "did you mean optimizer.lr?"),
        ("run resnet/laptop --set lr=1", 2, "did you mean optimizer.lr? 'hybridperf list --json'"),
        ("run resnet/laptop --set training.lr=1", 2, "did you mean optimizer.lr?"),
        ("run resnet/laptop --set zzz=1", 2, "'zzz'; 'hybridperf list --json' shows the keys."),
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
        ("compare /nowhere /elsewhere", 4, "/nowhere: expected the folder of a result, found no"),
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
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name)
    )
    done = hybridperf(*run)
    assert done.code == 4
    assert "install it with 'pip install scikit-learn'" in done.sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", ["run resnet/laptop", "rcp make resnet/laptop", "scale resnet/laptop --devices 1,2"]
)
def test_training_without_torch_says_how_to_get_it(
    hybridperf: Callable[..., Finished],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    done = hybridperf(*command.split(), "--out", str(tmp_path / "out"))
    assert done.code == 4
    assert done.sentence == (
        "hybridperf: expected the package torch, found no such package; "
        "install it with: pip install 'hybridperf[train]'."
    )
    assert not (tmp_path / "out").exists()


def test_any_package_that_is_missing_is_named(
    hybridperf: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hybridperf.cli.commands.prepare", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = hybridperf("prepare", "bert/workstation")
    assert done.code == 4
    assert "expected the package rich, found no such package" in done.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
@pytest.mark.parametrize("command", ["run resnet/laptop --out", "check", "score", "report"])
def test_a_folder_of_somebody_else_is_refused(command: str) -> None:
    for name in COMMANDS:  # whoever it becomes may not be able to read the modules
        importlib.import_module(f"hybridperf.cli.commands.{name}")
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
    assert "found permission denied; " in said.lower()


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
        (["re"], {"report", "rerun", "rescore"}),
        (["run", "resnet/l"], {"resnet/laptop"}),
        (["rcp", "mak"], {"make"}),
        (["run", "--p"], {"--plan", "--print", "--publish-errors"}),
        (["run", "resnet/laptop", "--di"], {"--division"}),
        (["completion", ""], {"--help", "-h", "--plan", "bash", "zsh", "fish"}),
        (["check", "pyproj"], {"pyproject.toml"}),
        (["run", "resnet/laptop", "--plan", "sched"], {"schedule="}),
        (["run", "resnet/laptop", "--plan", "dp", "=", "2,sched"], {"2,schedule="}),
        (
            ["run", "resnet/laptop", "--plan", "schedule", "="],
            {"gpipe", "1f1b", "interleaved", "zbv"},
        ),
        (["run", "resnet/laptop", "--plan", "pp", "=", "2,schedule", "=", "g"], {"gpipe"}),
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
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == completed


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    list_ = f"{sys.executable} -m tests.run.driver list --json"
    done = subprocess.run(
        ["bash", "-c", f'{list_} | head -c 1; echo " ${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.stderr) == ("[ 0\n", "")


def test_version(hybridperf: Callable[..., Finished]) -> None:
    assert hybridperf("--version").out == f"hybridperf {__version__}\n"


def test_json_is_json(hybridperf: Callable[..., Finished], finished_run: Path) -> None:
    tasks = {task["name"]: task for task in json.loads(hybridperf("list", "--json").out)}
    assert list(tasks) == task_names()
    assert tasks["resnet/laptop"]["hyperparameters"]["optimizer.lr"] == 0.1
    diagnoses = json.loads(hybridperf("doctor", "--json", "--out", str(finished_run)).out)
    assert all(each["status"] in {"ok", "missing", "optional"} for each in diagnoses)
    (score,) = json.loads(hybridperf("score", str(finished_run), "--json").out)
    assert score["benchmark"] == "resnet/laptop"
    checked = hybridperf("check", str(finished_run), "--json")
    assert checked.code == 0
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
    assert checked.code == 0
    assert "provisional result.run_count" in checked.out
    assert "provisional by hybridperf-1.0, 1 log checked" in checked.out
    pages = hybridperf("report", str(finished_run), "--out", str(tmp_path / "pages"))
    assert pages.code == 0
    assert all(Path(line).is_file() for line in pages.out.split())
