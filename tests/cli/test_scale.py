"""``hybridperf scale``: results that are there, and results that it makes."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING

from hybridperf.cli.commands import scale as scale_command
from hybridperf.cli.main import build_parser
from hybridperf.log.package import find_results
from hybridperf.report.scaling import SCALING_COLUMNS
from hybridperf.rules.check import check_path
from hybridperf.system.accelerators import Devices
from hybridperf.system.host import restrict_cores
from tests.packages import write_result
from tests.run.conftest import FAULTY, OPEN, Bench, bench, finished
from tests.scaling_results import on_cores, write_on, write_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.run.conftest import Finished

__all__ = ["bench"]


def _folders(root: Path) -> str:
    return ",".join(str(package.folder) for package in reversed(write_pair(root)))


def test_the_text_names_base_metrics_and_causes(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    done = hybridperf("scale", "--from", _folders(tmp_path), "--strong")

    assert done.code == 0
    assert "resnet/laptop: base acme on-1, 1 core, 5 runs" in done.out
    rows = [line.split() for line in done.out.splitlines() if line.startswith("acme on-2 ")]
    assert [row[2:6] for row in rows] == [
        ["2", "strong", "time", "to"],
        ["2", "strong", "end-to-end", "throughput"],
        ["2", "strong", "steady", "throughput"],
    ]
    assert "75.0 % by time to train = 100.0 % by samples to converge x 75.0 % by" in done.out
    assert "75.0 % = 100 % of its device time less 0.0 evaluation, 25.0 training" in done.out
    assert "bootstrap over the runs of both results, 10,000 resamples, seed" in done.out


def test_json_and_csv_hold_the_same_figures(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    one, two = _folders(tmp_path).split(",")

    done = hybridperf("scale", "--from", one, "--from", two, "--json")
    table = hybridperf("scale", "--from", f"{one},{two}", "--format", "csv")

    (result,) = json.loads(done.out)["results"]
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert tuple(rows[0]) == SCALING_COLUMNS
    for row in rows:
        figure = result["efficiency"][row["metric"]]
        assert float(row["efficiency"]) == figure["value"]
        assert float(row["interval_high"]) == figure["high"]
        assert float(row["by_samples"]) == result["split"]["samples"]
        assert float(row["loss_training"]) == result["split"]["losses"]["training"]
        assert (row["base_devices"], row["devices"]) == ("1", "2")


def test_what_is_not_rated_is_said(hybridperf: Callable[..., Finished], tmp_path: Path) -> None:
    base = write_on(tmp_path, 1)
    crowded = on_cores(write_result(tmp_path, plan="dp=4", system="crowded"), 2)
    fast = write_on(tmp_path, 2, times_s=[2.0] * 5)
    folders = ",".join(str(each.folder) for each in (base, fast, crowded))

    done = hybridperf("scale", "--from", folders)

    assert done.code == 0
    assert "oversubscribed: not rated; 4 ranks share 2 cores" in done.out
    assert "super-linear by training" in done.out


def test_command_lines_that_make_no_scaling_are_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    pair = _folders(tmp_path / "pair")
    task = "resnet/laptop"
    for arguments, code, sentence in [
        ((), 2, "expected a task with --devices N,N,..., or results with --from"),
        ((task,), 2, "expected a task with --devices"),
        ((task, "--from", pair), 2, "found --from and a task"),
        (("--from", pair, "--set", "optimizer.lr=0.1"), 2, "found --from and --set"),
        (("--from", pair.split(",")[0]), 2, "on two numbers of devices or more, found 1"),
        (("--from", f"{pair},{tmp_path / 'nowhere'}"), 4, "found no such folder; name one"),
        (("--from", str(tmp_path / "pair")), 2, "found 2 results"),
        (("--from", pair, "--weak"), 2, "expected one batch for each device, as --weak asks for"),
        (("--from", pair, "--strong", "--weak"), 2, "not allowed with argument"),
        (("resnet/laptpo", "--devices", "1,2"), 2, "did you mean resnet/laptop"),
        ((task, "--devices", "1"), 2, "two numbers of devices or more, each once, found 1"),
        ((task, "--devices", "2,2"), 2, "each once, found 2,2"),
        ((task, "--devices", "1,two"), 2, "expected numbers of devices divided by commas"),
        ((task, "--devices", "1,0"), 2, "expected numbers of devices divided by commas"),
        ((task, "--devices", "1,2", "--runs", "2"), 2, "expected 3 runs or more"),
        ((task, "--devices", "1,2", "--plan", "pp=2"), 2, "that a replica's 2 ranks divide"),
        ((task, "--devices", "1,2", "--plan", "zero=1"), 2, "replicas (dp > 1) for zero=1"),
        (
            (task, "--devices", "1,2,4", "--plan", "dp=1", "--plan", "dp=2"),
            2,
            "expected one plan, or one for each of 3 numbers of devices, found 2",
        ),
        (
            (task, "--devices", "1,2", "--plan", "dp=2", "--plan", "dp=1"),
            2,
            "expected a plan of 1 ranks for 1 devices, found dp=2 of 2",
        ),
        (
            (task, "--devices", "3,4", "--weak"),
            2,
            "expected a global batch that 3 devices divide, as --weak keeps their share, found 32",
        ),
        ((task, "--devices", "1,4000"), 2, "lower dp or pp"),
    ]:
        done = hybridperf("scale", *arguments)
        assert done.code == code, arguments
        assert sentence in done.sentence, arguments


def _orders(*arguments: str) -> dict[int, tuple[str, str | None, dict[str, object]]]:
    options = build_parser().parse_args(["scale", "resnet/laptop", *arguments])
    return {
        count: (str(request.plan), request.system, dict(request.overrides))
        for count, request in scale_command.scaling_requests(options).items()
    }


def test_a_plan_is_spread_by_replicas_and_plans_are_taken_as_given() -> None:
    pipeline = "dp=4,pp=2,schedule=gpipe,microbatches=4"

    assert _orders("--devices", "4,2", "--plan", pipeline) == {
        2: ("pp=2,schedule=gpipe,microbatches=4", None, {}),
        4: ("dp=2,pp=2,schedule=gpipe,microbatches=4", None, {}),
    }
    assert _orders("--devices", "2,1", "--plan", "pp=2", "--plan", "dp=1", "--system", "it") == {
        1: ("dp=1", "it-dp1", {}),
        2: ("pp=2,schedule=1f1b,microbatches=2", "it-dp1-pp2-1f1b-m2", {}),
    }


def test_weak_scaling_keeps_the_batch_of_each_device() -> None:
    requests = _orders("--devices", "2,4", "--weak", "--set", "training.global_batch_size=24")

    batch = "training.global_batch_size"
    assert {count: overrides for count, (_, _, overrides) in requests.items()} == {
        2: {batch: 24},
        4: {batch: 48},
    }
    assert all(str(system).endswith("-weak") for _, system, _ in requests.values())


def test_cores_are_held_back_and_given_back(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with restrict_cores(1):
        assert os.sched_getaffinity(0) == {min(before)}
    with restrict_cores(10_000):
        assert os.sched_getaffinity(0) == before
    for cpu in before:  # all of them threads of one core
        place = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text("0-99")
    with restrict_cores(1, tmp_path):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_accelerators_need_no_cores_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_command, "usable_devices", lambda: Devices("gpu", 2, "H200"))
    before = os.sched_getaffinity(0)

    with scale_command.on_devices(1):
        assert os.sched_getaffinity(0) == before


def test_results_are_made_and_found_again(bench: Bench) -> None:
    how = ("--trainer", FAULTY, *OPEN, "--devices", "1,2", "--runs", "3")
    command = ("scale", "resnet/laptop", *how)

    done = finished(bench.command(*command, "--out", str(bench.out), "--json"))
    again = finished(bench.command(*command, "--out", str(bench.out), "--json"))

    assert (done.code, again.code) == (0, 0)
    assert json.loads(done.out) == json.loads(again.out)  # all runs were there
    packages = {package.system: package for package in find_results(bench.out)}
    one, two = sorted(packages)
    answer = json.loads(done.out)
    (result,) = answer["results"]
    assert (answer["base"]["system"], answer["base"]["devices"]) == (one, 1)
    assert (result["system"], result["kind"]) == (two, "strong")
    assert answer["findings"] == []
    verdict = check_path(bench.out)
    assert verdict.findings == ()
    cores = len(os.sched_getaffinity(0))
    assert result["oversubscribed"] is (cores < 2)
