"""The arrows of the house: who may import whom, and how large a room's parts may grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
#: how everything says no, what it is about, and how work is spread
FOR_ALL = {"findings", "refusal", "plan", "jobs"}
# Each room, and the rooms of suite that it may import; a longer name is one module of a room.
ARROWS = {
    "findings": set[str](),
    "refusal": set[str](),
    "plan": set[str](),
    "jobs": set[str](),
    "tasks": {"runs.atomic"},
    "logs": set[str](),
    "systems": {"tasks"},
    "scores": {"logs", "tasks"},
    "rules": {"logs", "scores.convergence", "scores.scaling", "systems.catalog", "tasks"},
    "runs": {"logs", "systems", "tasks"},
    "report": {"logs", "rules", "scores", "tasks", "systems", "runs.atomic"},
    "cli": {"logs", "report", "rules", "runs", "scores", "systems", "tasks"},
    "pytest_plugin": {"logs", "report", "rules", "runs", "scores", "systems", "tasks"},
}
TRAINERS_MAY_USE = {
    "suite.logs.keys",
    "suite.plan",
    "suite.runs.access",
    "suite.runs.prediction",
    "suite.runs.timed_run",
    "suite.tasks",
}
REGISTERS_BY_IMPORT = "_rules"  #: ends names of modules whose functions a register reaches

SUITE = sorted((ROOT / "suite").rglob("*.py"))
TRAINERS = sorted((ROOT / "reference_impls").rglob("*.py"))
OTHERS = sorted((ROOT / "tests").rglob("*.py")) + sorted(ROOT.glob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also inside of functions and for types only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _is_under(module: str, tree: str) -> bool:
    return module == tree or module.startswith(f"{tree}.")


def _room(path: Path) -> str:
    return path.relative_to(ROOT / "suite").with_suffix("").parts[0]


@pytest.mark.parametrize("path", SUITE + TRAINERS + OTHERS, ids=_name)
def test_no_module_is_longer_than_can_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", SUITE, ids=_name)
def test_the_suite_never_imports_a_trainer(path: Path) -> None:
    assert [each for each in _imports(path) if _is_under(each, "reference_impls")] == []


@pytest.mark.parametrize("path", SUITE, ids=_name)
def test_rooms_import_only_along_the_arrows(path: Path) -> None:
    room = _room(path)
    allowed = set[str]() if room == "__init__" else ARROWS[room] | FOR_ALL | {room}

    wrong = [
        each
        for each in _imports(path)
        if _is_under(each, "suite")
        and each != "suite.__version__"
        and not any(_is_under(each, f"suite.{tree}") for tree in allowed)
    ]

    # "import suite" alone reads its version and place.
    assert [each for each in wrong if each != "suite"] == []


def test_every_room_has_its_arrows() -> None:
    rooms = {_room(path) for path in SUITE} - {"__init__"}

    assert rooms <= set(ARROWS)


@pytest.mark.parametrize("path", TRAINERS, ids=_name)
def test_trainers_use_only_the_workers_side_of_the_suite(path: Path) -> None:
    wrong = [
        each
        for each in _imports(path)
        if _is_under(each, "suite") and not any(_is_under(each, tree) for tree in TRAINERS_MAY_USE)
    ]

    assert wrong == []


@pytest.mark.parametrize("path", SUITE + TRAINERS, ids=_name)
def test_every_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    offered = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }

    assert ast.get_docstring(tree)
    if not path.stem.endswith(REGISTERS_BY_IMPORT) and public:
        assert offered
        defined = {
            *public,
            *(
                name.id
                for node in tree.body
                for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            ),
            *(module.rpartition(".")[2] for module in _imports(path)),
        }
        assert offered - defined == set()


@pytest.mark.parametrize("path", SUITE + TRAINERS, ids=_name)
def test_one_file_names_a_kind_of_accelerator(path: Path) -> None:
    named = re.search("cuda", path.read_text(encoding="utf-8"), re.IGNORECASE)

    assert bool(named) == (path == ROOT / "suite/systems/toolkit.py")


_IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An optional package may be absent here; the suite and what it requires may not.
        assert error.name.partition(".")[0] in {"pynvml"}, error
print(*sorted({"torch", "reference_impls", "sklearn"} & set(sys.modules)))
"""


def test_importing_the_suite_imports_no_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in SUITE
    ]

    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{_IMPORT_ALL}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *modules], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    assert len(modules) > 50
