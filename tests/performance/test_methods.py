"""The commands that compare methods, and the table of what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.cli.parser import build_parser
from tests.packages import EPOCHS, write_result
from tests.performance.methods import METHODS, Method, commands, table

if TYPE_CHECKING:
    from pathlib import Path

SYNCHRONOUS, OTHER, TUNED, WORST = (
    Method("one", "synchronous", "dp=2"),
    Method("other", "rounded", "dp=2,gradients=bf16"),
    Method("tuned", "rounded", "dp=2,gradients=bf16", {"vit/laptop": ["optimizer.lr=0.5"]}),
    Method("worst", "rounded", "dp=2,gradients=bf16"),
)


def test_every_method_has_a_key_of_its_own() -> None:
    keys = [method.key for method in METHODS]

    assert len(set(keys)) == len(keys) == 9
    assert not [(a, b) for a in keys for b in keys if a != b and a.endswith(f"-{b}")]


def test_commands_alternate_between_methods_and_are_of_the_open_division(tmp_path: Path) -> None:
    words = list(
        commands(
            ["resnet/laptop", "vit/laptop"],
            [SYNCHRONOUS, TUNED],
            runs=2,
            out=tmp_path,
            org="acme",
        )
    )

    parsed = [build_parser().parse_args(each) for each in words]
    assert [(each.task, each.plan, each.runs) for each in parsed] == [
        ("resnet/laptop", "dp=2", 1),
        ("vit/laptop", "dp=2", 1),
        ("vit/laptop", "dp=2,gradients=bf16", 1),
        ("resnet/laptop", "dp=2", 2),
        ("vit/laptop", "dp=2", 2),
        ("vit/laptop", "dp=2,gradients=bf16", 2),
    ]
    assert {each.division for each in parsed} == {"open"}
    assert [each.overrides for each in parsed[:3]] == [[], [], ["optimizer.lr=0.5"]]
    assert parsed[2].system.endswith("-tuned")


def test_the_table_states_means_intervals_ratios_and_misses(tmp_path: Path) -> None:
    times = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    for system, plan, epochs, missed in (
        ("mine-one", "dp=2", EPOCHS, []),
        ("mine-other", "dp=2,gradients=bf16", EPOCHS + 1, [2]),
        ("mine-tuned", "dp=2,gradients=bf16", EPOCHS, [1, 2]),
        ("mine-worst", "dp=2,gradients=bf16", EPOCHS, [1, 2, 3, 4, 5]),
    ):
        write_result(
            tmp_path, plan=plan, times_s=times, division="open", system=system, epochs=epochs,
            missed=missed,
        )  # fmt: skip

    head, _, one, other, tuned, worst = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(tmp_path, [SYNCHRONOUS, OTHER, TUNED, WORST]).splitlines()
    )

    samples = [epochs * 1195 // 32 * 32 for epochs in (EPOCHS, EPOCHS + 1)]
    assert head[2:] == [
        *("samples to target", "of the first method's", "time to target, s", "missed")
    ]
    assert one[:2] == ["resnet/laptop", "synchronous (`dp=2`)"]
    assert one[2] == f"{samples[0]:,} ({samples[0]:,} to {samples[0]:,})"
    assert one[3:] == ["", "12.5 (10.8 to 14.2)", "0 of 6"]
    assert other[2] == f"{samples[1]:,} ({samples[1]:,} to no bound)"
    assert other[3] == f"{samples[1] / samples[0]:.2f} (no interval)"
    assert other[4].startswith("13.2 (")
    assert other[4].endswith(" to no bound)")
    assert other[5] == "1 of 6"
    where = f"{samples[0]:,} ({samples[0]:,} to {samples[0]:,})"
    assert (tuned[2], tuned[5]) == (f"none; where reached {where}", "2 of 6")
    assert worst[2:] == ["none", "1.00 (no interval)", "none", "5 of 6"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_mean_of_too_few_runs_is_not_stated(tmp_path: Path, count: int) -> None:
    write_result(tmp_path, times_s=[10.0] * count, division="open", system="mine-one")

    assert "| too few runs |" in table(tmp_path, [SYNCHRONOUS])


def test_no_open_result_is_left_out(tmp_path: Path) -> None:
    write_result(tmp_path, division="open", system="mine-another")
    write_result(tmp_path, division="closed", system="mine-closed")

    with pytest.raises(ValueError, match=r"results of no method: mine-another$"):
        table(tmp_path, [SYNCHRONOUS])
