"""Which part of the project may import which, without cycles, and how large folders may be."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: what every part may import
FOR_ALL = {"findings", "errors", "plan", "parallel_map", "spelling", "untrusted"}
# Each part of the harness, and the parts that it may import; a longer name is one module of a part.
MAY_IMPORT = {
    "__init__": {"report.frames"},
    "findings": set[str](),
    "errors": set[str](),
    "plan": set[str](),
    "parallel_map": set[str](),
    "spelling": set[str](),
    "untrusted": set[str](),
    "tasks": {"run.files"},
    "log": set[str](),
    "system": {"tasks"},
    "projection": {"log", "score.statistics", "system", "tasks"},
    "score": {"log", "rules.evidence", "system", "tasks"},
    "rules": {
        "log",
        "projection.units",
        "score.convergence",
        "score.rcp",
        "score.validity",
        "system",
        "tasks",
    },
    "run": {"log", "projection", "rules.evidence", "system", "tasks"},
    "report": {
        "log",
        "projection",
        "rules",
        "score",
        "tasks",
        "system",
        "run.files",
    },
    "claims": {"log", "projection", "report", "rules", "score", "system", "tasks"},
    "regression": {"log", "report", "score"},
    "cli": {
        "claims",
        "log",
        "projection",
        "regression",
        "report",
        "rules",
        "run",
        "score",
        "system",
        "tasks",
    },
    "pytest_plugin": {"time_to_train"},
    "time_to_train": {
        *("cli.progress", "log", "projection.project", "regression", "report", "run", "score"),
        *("system", "tasks"),
    },
}
TRAINERS_MAY_USE = {
    "hybridperf.errors",
    "hybridperf.log.chain",
    "hybridperf.log.keys",
    "hybridperf.plan",
    "hybridperf.projection",
    "hybridperf.rules.evidence",
    "hybridperf.run.access",
    "hybridperf.run.prediction",
    "hybridperf.run.timed_run",
    "hybridperf.system.host",  # counters of the kernel, beside what a probe of the network times
    "hybridperf.tasks",
}
REGISTERS_BY_IMPORT = "_rules"  #: ends names of modules whose functions a register reaches

HARNESS_ROOT = ROOT / "suite/hybridperf"
HARNESS = sorted(HARNESS_ROOT.rglob("*.py"))
TRAINERS = sorted((ROOT / "reference_impls/hybridperf_reference").rglob("*.py"))


#: folder -> most files with code, most lines; a commit that raises a number says why
BUDGETS: dict[str, tuple[int, int]] = {
    "hybridperf": (9, 1250),
    "hybridperf/claims": (7, 2050),
    "hybridperf/cli": (27, 4350),
    "hybridperf/log": (8, 1650),
    "hybridperf/plan": (6, 1750),
    "hybridperf/projection": (14, 5150),
    "hybridperf/report": (15, 4150),
    "hybridperf/rules": (18, 7100),
    "hybridperf/run": (33, 8450),
    "hybridperf/score": (15, 4500),
    "hybridperf/system": (13, 2950),
    "hybridperf/tasks": (13, 3100),
    "hybridperf_reference": (9, 1700),
    "hybridperf_reference/bert": (2, 350),
    "hybridperf_reference/engine": (30, 7250),
    "hybridperf_reference/images": (1, 400),
    "hybridperf_reference/resnet": (1, 150),
    "hybridperf_reference/vgg": (1, 100),
    "hybridperf_reference/vit": (1, 150),
}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports, also inside of functions and for types only."""
    imported: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(imported)


def _is_under(module: str, tree: str) -> bool:
    return module == tree or module.startswith(f"{tree}.")


def _part(path: Path) -> str:
    return path.relative_to(HARNESS_ROOT).with_suffix("").parts[0]


def _imports_under(paths: list[Path], tree: str) -> list[tuple[str, str]]:
    """Return (file, module) of every import of ``tree``."""
    return [
        (_name(path), each) for path in paths for each in _imports(path) if _is_under(each, tree)
    ]


def test_the_harness_never_imports_a_trainer() -> None:
    assert _imports_under(HARNESS, "hybridperf_reference") == []


def _may_import(path: Path, module: str) -> bool:
    part = _part(path)
    if module in {"hybridperf", "hybridperf.__version__"}:
        return True  # "import hybridperf" alone reads its version and place
    allowed = MAY_IMPORT[part] | (set[str]() if part == "__init__" else FOR_ALL | {part})
    return any(_is_under(module, f"hybridperf.{tree}") for tree in allowed)


def test_parts_import_only_what_they_may() -> None:
    wrong = [
        (_name(path), each)
        for path in HARNESS
        for each in _imports(path)
        if _is_under(each, "hybridperf") and not _may_import(path, each)
    ]

    assert wrong == []


def _modules() -> dict[str, Path]:
    found = {}
    for tree in (HARNESS_ROOT, ROOT / "reference_impls/hybridperf_reference"):
        for path in sorted(tree.rglob("*.py")):
            parts = path.relative_to(tree.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return every set of modules that reach one another, each sorted."""
    reached = {}
    for start in edges:
        seen, waiting = set[str](), [start]
        while waiting:
            new = edges[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in reached[one] if one in reached[other]))
        for one in edges
        if one in reached[one]
    }
    return [list(group) for group in sorted(groups)]


def test_no_module_imports_itself_through_others() -> None:
    """No cycle of imports, those inside of functions and for types only included.

    An import of a package's name counts as one of its ``__init__``; that a package's ``__init__``
    runs before each of its modules does not count.
    """
    modules = _modules()
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        edges[name] = set()
        for imported in _imports(path):
            target = imported if imported in modules else imported.rpartition(".")[0]
            if target in modules and target != name:
                edges[name].add(target)

    assert _cycles(edges) == []


def test_cycles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}

    assert _cycles(edges) == [["b", "c"]]


def test_every_part_has_its_imports_stated() -> None:
    parts = {_part(path) for path in HARNESS}

    assert parts == set(MAY_IMPORT)


def test_trainers_use_only_the_worker_api() -> None:
    wrong = [
        (file, each)
        for file, each in _imports_under(TRAINERS, "hybridperf")
        if not any(_is_under(each, tree) for tree in TRAINERS_MAY_USE)
    ]

    assert wrong == []


def _undefined_or_unlisted_names(path: Path) -> list[str]:
    """Return public names that ``__all__`` lacks altogether, or lists and nothing defines."""
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
    if path.stem.endswith(REGISTERS_BY_IMPORT) or not public:
        return []
    if not offered:
        return sorted(public)
    assigned = {
        name.id
        for node in tree.body
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    imported = {module.rpartition(".")[2] for module in _imports(path)}
    return sorted(offered - public - assigned - imported)


def _sizes() -> dict[str, tuple[int, int]]:
    """Return the number of files with code and their lines, by folder."""
    sizes: dict[str, tuple[int, int]] = {}
    for root in (HARNESS_ROOT, HARNESS_ROOT.parents[1] / "reference_impls/hybridperf_reference"):
        for path in root.rglob("*.py"):
            inner = path.relative_to(root).parts
            folder = f"{root.name}/{inner[0]}" if inner[1:] else root.name
            files, lines = sizes.get(folder, (0, 0))
            count = len(path.read_text(encoding="utf-8").splitlines())
            sizes[folder] = (files + (count > 1), lines + count)
    return sizes


def test_folders_keep_their_budgets_of_files_and_lines() -> None:
    sizes = _sizes()

    assert set(sizes) == set(BUDGETS)
    assert {
        folder: size
        for folder, size in sizes.items()
        if size[0] > BUDGETS[folder][0] or size[1] > BUDGETS[folder][1]
    } == {}


def test_a_plan_field_touches_at_most_four_source_files() -> None:
    named = [
        _name(path)
        for path in HARNESS + TRAINERS
        if re.search(r"\boffload\b", path.read_text(encoding="utf-8"))
    ]

    assert len(named) == 4, named


def test_a_rule_is_its_function_and_its_rows() -> None:
    registered = "\n".join(
        path.read_text(encoding="utf-8") for path in HARNESS_ROOT.glob("rules/**/*_rules.py")
    )
    data = "\n".join(
        path.read_text(encoding="utf-8") for path in HARNESS_ROOT.glob("rules/**/*.toml")
    )
    rules = set(re.findall(r'^\[rules\."?([a-z0-9_.]+)"?\]', data, re.MULTILINE))

    assert len(rules) > 50
    assert [name for name in sorted(rules) if registered.count(f'"{name}",') != 1] == []


def test_a_device_is_a_row_of_data() -> None:
    catalog = tomllib.loads((HARNESS_ROOT / "system/catalog.toml").read_text(encoding="utf-8"))
    code = "\n".join(path.read_text(encoding="utf-8") for path in HARNESS + TRAINERS)

    assert [row["name"] for row in catalog["accelerator"] if f'"{row["name"]}"' in code] == []


def test_every_required_package_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    required = {
        re.split(r"[>=\[ ]", each)[0]
        for names in (project["dependencies"], *extras)
        for each in names
    }
    imported = {each.partition(".")[0] for path in HARNESS + TRAINERS for each in _imports(path)}

    assert {name for name in required if {"pillow": "PIL"}.get(name, name) not in imported} == {
        "nvidia-ml-py",  # imported by name, where there is a GPU
        "pytest-benchmark",  # a plugin, which ours extends
        "scikit-learn",  # its file of digits is read
    }


def test_every_module_has_a_docstring() -> None:
    modules = HARNESS + TRAINERS

    assert [
        _name(path)
        for path in modules
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ] == []


def test_every_module_states_its_public_names() -> None:
    assert [
        (_name(path), names)
        for path in HARNESS + TRAINERS
        if (names := _undefined_or_unlisted_names(path))
    ] == []


def test_one_file_names_a_kind_of_accelerator() -> None:
    named = [
        _name(path)
        for path in HARNESS + TRAINERS
        if re.search("cuda", path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]

    assert named == ["suite/hybridperf/system/toolkit.py"]


_IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An optional package may be absent here; the suite and what it requires may not.
        assert error.name.partition(".")[0] in {"pynvml"}, error
print(*sorted({"torch", "hybridperf_reference", "sklearn"} & set(sys.modules)))
"""


def test_importing_the_harness_imports_no_torch() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "suite").with_suffix("").parts).removesuffix(".__init__")
        for path in HARNESS
    ]

    script = f"import sys; sys.path.insert(0, {str(ROOT / 'suite')!r})\n{_IMPORT_ALL}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *modules], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
