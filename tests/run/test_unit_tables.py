"""UnitCounts tables of tasks of one's own: counted by their trainer, cached, and counted anew."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli import main
from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.projection.units import UnitCounts, UnitTable, load_units
from hybridperf.run import profiles
from hybridperf.run.profiles import cache_folder, cached_units, measure_profile, units_of
from hybridperf.run.projection import is_projectable, projection_source
from hybridperf.run.request import RunRequest
from hybridperf.system.accelerators import Devices
from hybridperf.tasks.registry import read_task, task_path
from hybridperf_reference.units import unit_table
from tests.projection.tables import plain

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
MIXER = EXAMPLES / "my_model/task.toml"
FOREIGN = EXAMPLES / "numpy_trainer/task.toml"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(EXAMPLES)


def _made_up(path: Path) -> dict[str, Any]:
    """Return a table of the task's units that nobody counted, as its trainer would answer."""
    task = read_task(path)
    units = tuple(UnitCounts(name, 1e6, plain(1000), 64, 128) for name in task.units)
    table: dict[str, Any] = json.loads(json.dumps(UnitTable(task.name, units, 64).as_table()))
    return table


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have trainers answer at once; return the modules that were asked."""
    asked: list[str] = []

    def answer(_task: object, module: str, path: Path) -> dict[str, Any]:
        asked.append(module)
        return _made_up(path)

    monkeypatch.setattr(profiles, "ask_trainer", answer)
    return asked


def test_a_model_of_ones_own_is_counted_and_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from my_model.chain import mixer_chain

    assert cached_units(MIXER) is None
    table = units_of(MIXER)

    assert table == unit_table(read_task(MIXER), mixer_chain)
    assert table.parameters > 0
    monkeypatch.setattr(profiles, "ask_trainer", None)  # to be called no more
    assert units_of(MIXER) == cached_units(MIXER) == table


def test_other_sizes_of_a_known_family_need_no_code(tmp_path: Path) -> None:
    text = task_path("bert/laptop").read_text()
    own = tmp_path / "task.toml"
    text = text.replace('name = "bert/laptop"', 'name = "bert/mine"')
    text = text.replace('"layers.0", "layers.1"', '"layers.{layers}"')
    own.write_text(text.replace("layers = 2", "layers = 4"))

    table, usual = units_of(own), load_units("bert/laptop")

    assert len(table.units) == len(usual.units) + 2
    assert table.units[:3] == usual.units[:3]


def test_a_table_is_that_of_the_file_not_of_the_name(tmp_path: Path, counted: list[str]) -> None:
    own = tmp_path / "task.toml"
    own.write_text(task_path("bert/laptop").read_text())
    assert units_of(own) != units_of(task_path("bert/laptop"))
    assert counted == ["units"]


@pytest.mark.parametrize("fact", ["torch", "trainer_sha256", "task_sha256"])
def test_a_table_made_with_something_else_is_counted_anew(fact: str, counted: list[str]) -> None:
    units_of(MIXER)
    units_of(MIXER)
    assert counted == ["units"]

    place = next(cache_folder().glob("units/*.json"))
    content = json.loads(place.read_text())
    content["made_with"][fact] = "another"
    place.write_text(json.dumps(content))

    assert cached_units(MIXER) is None
    units_of(MIXER)
    assert counted == ["units", "units"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"made_with": NaN}'])
@pytest.mark.usefixtures("counted")
def test_a_damaged_cache_is_counted_anew(content: bytes) -> None:
    table = units_of(MIXER)
    next(cache_folder().glob("units/*.json")).write_bytes(content)

    assert cached_units(MIXER) is None
    assert units_of(MIXER) == table


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"units": []}, "found the units () of a task with ('patches', "),
        ({"units": 3}, "at 'units'"),
        ({"input_elements": None}, "at 'input_elements'"),
    ],
)
def test_a_table_of_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], said: str
) -> None:
    monkeypatch.setattr(profiles, "ask_trainer", lambda *_: _made_up(MIXER) | changes)

    with pytest.raises(UserError) as caught:
        units_of(MIXER)

    assert said in str(caught.value)
    assert "a unit table of my_model.units" in str(caught.value)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.parametrize("value", [-1, 1e30])
def test_numbers_out_of_bounds_are_refused(value: float) -> None:
    table = UnitTable("a/b", (UnitCounts("one", value, (), 1, 1),), 1).as_table()
    table = json.loads(json.dumps(table))

    with pytest.raises(ValueError, match="expected forward_flops from 0 to"):
        UnitTable.from_table(table)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "diagonal"}, "one of column, column_bias, row, row_bias, normalization, other"),
        ({"rows": -1}, "expected rows from 0 to"),
        ({"elements": 10**30}, "expected elements from 0 to"),
        ({"tensors": 1.5}, "a value of type int"),
        ({"rows": 7}, "expected elements that 7 rows divide of the other parameters of unit 'one'"),
        ({"columns": 7}, "one of the keys kind, rows, elements, tensors"),
    ],
)
def test_parameters_out_of_bounds_are_refused(changes: dict[str, object], said: str) -> None:
    table = json.loads(
        json.dumps(UnitTable("a/b", (UnitCounts("one", 1, plain(10), 1, 1),), 1).as_table())
    )
    assert UnitTable.from_table(table).parameters == 10
    table["units"][0]["parameter_groups"][0].update(changes)

    with pytest.raises(ValueError, match=said):
        UnitTable.from_table(table)


def test_what_follows_from_parameters_is_not_stated() -> None:
    table = UnitTable("a/b", (UnitCounts("one", 1, plain(10, split=4), 1, 1),), 1).as_table()
    assert UnitTable.from_table(json.loads(json.dumps(table))).units[0].tp_parameters == 4
    stated = json.loads(json.dumps(table))
    stated["units"][0]["tp_parameters"] = 10**9

    with pytest.raises(ValueError, match=r"'units.*tp_parameters'"):
        UnitTable.from_table(stated)


@pytest.mark.parametrize("ask", [units_of, lambda path: measure_profile(path, 1)])
def test_a_trainer_without_the_module_says_how_to_provide_it(
    ask: Callable[[Path], object],
) -> None:
    said = r"expected the module numpy_trainer\.\w+, found none; "
    with pytest.raises(UserError, match=said) as e:
        ask(FOREIGN)

    assert "docs/your_model.md" in str(e.value)
    assert "\n" not in str(e.value)
    assert e.value.exit_code is ExitCode.ENVIRONMENT


def test_a_chain_that_cannot_be_counted_is_a_sentence(tmp_path: Path) -> None:
    own = tmp_path / "task.toml"
    own.write_text(MIXER.read_text().replace("width = 64", 'width = "wide"'))

    with pytest.raises(UserError, match=r"expected an answer of my_model\.units, found .*str") as e:
        units_of(own)

    assert "\n" not in str(e.value)


@pytest.mark.parametrize("ask", [units_of, lambda path: measure_profile(path, 1)])
def test_without_pytorch_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(profiles, "torch_folder", lambda: None)

    with pytest.raises(UserError, match=r"the package torch, .*'hybridperf\[train\]'"):
        ask(MIXER)


@pytest.mark.usefixtures("counted")
def test_a_run_of_ones_own_task_is_projected_once_its_units_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h100 = Devices("gpu", 4, "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("hybridperf.run.projection.usable_devices", lambda: h100)
    request = RunRequest(MIXER, ParallelPlan.parse("dp=2,pp=2"), 1, tmp_path)

    assert is_projectable(request)
    assert projection_source(request) is None
    table = units_of(MIXER)
    source = projection_source(request)
    assert source is not None
    assert source.units == table
    assert projection_source(dataclasses.replace(request, trainer="numpy_trainer")) is None
    assert not is_projectable(dataclasses.replace(request, task_path=FOREIGN))


@pytest.mark.usefixtures("counted")
def test_plans_for_ones_own_task_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("plan", str(MIXER), "--devices", "4", "--system", "a100-sxm", "--json"))

    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "mixer/digits"
    assert {ParallelPlan.parse(each["plan"]).ranks for each in found["equivalent"]["plans"]} == {4}
