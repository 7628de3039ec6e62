"""What ``hybridperf plan`` prints of rankings, within 80 columns, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Literal

import pytest

from hybridperf.cli.planning import Shown, plans_json, print_plans
from hybridperf.projection.memory import Memory
from hybridperf.projection.search import Ranking
from hybridperf.projection.systems import Accuracy
from tests.projection.test_search_explain import projected

if TYPE_CHECKING:
    from hybridperf.projection.project import Projection

FIRST, SECOND = "dp=2,zero=1", "pp=2,schedule=interleaved,stages=3,microbatches=16,sync=overlapped"


def _of(plan: str, step_s: float, **parts: float) -> Projection:
    memory = Memory(10**9, 0, 10**9, 10**8, 5 * 10**8)
    return dataclasses.replace(projected(plan, step_s, **parts), memory=(memory,))


@pytest.fixture
def shown() -> Shown:
    best = [_of(FIRST, 0.010), _of(SECOND.removesuffix(",sync=overlapped"), 0.012, idle=0.25)]
    return Shown(
        task="resnet/laptop",
        system="here",
        source="a profile",
        devices=2,
        global_batch_size=32,
        precision="fp32",
        device_bytes=80 * 10**9,
        equivalent=Ranking(best, considered=1234, too_large=17, projected=56),
        other=None,
        samples_to_target=9600.0,
        accuracy=_accuracy("profile", 0.1),
        plan_accuracy=_accuracy("two plans", 0.25),
    )


def _accuracy(of: Literal["profile", "two plans"], nine_in_ten: float) -> Accuracy:
    return Accuracy(of, 0.05, nine_in_ten, 0.3, 20, "twenty runs of a test")


def _printed(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> list[str]:
    monkeypatch.setenv("COLUMNS", f"{columns}")
    print_plans(shown)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_and_its_notes_fit(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = _printed(shown, capsys, monkeypatch, columns)

    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert "resnet/laptop on 2 devices of here: batch 32, fp32; projected from a profile" in text
    assert "takes 2 ms (20.0%) longer, mostly waiting for other stages: 3 ms a step" in text
    assert "1,234 plans looked at, 17 of them too large for memory, 56 simulated" in text
    (row,) = (line.split() for line in lines if line.startswith(f"{FIRST} "))
    assert row[1:5] == ["10", "ms", "9-11", "ms"]
    assert {"3,200", "2.60", "GB"} <= set(row)
    assert ("0.0%" in row) is (columns == 120)
    assert row[-2:] == ["3", "s"]  # 300 steps


def test_steps_that_were_measured_decide(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shown.equivalent.best
    both = {str(first.plan): 0.015, str(second.plan): 0.011}
    measured = dataclasses.replace(shown, measured_s=both)

    text = "\n".join(_printed(measured, capsys, monkeypatch, 200))

    assert measured.in_order(shown.equivalent)[0] is second
    assert f"\n{second.plan}      11 ms   12 ms" in text
    assert f"{FIRST} takes 4 ms (36.4%) longer as measured; projected was 2 ms shorter." in text
    assert measured.time_to_target_s(first) == pytest.approx(300 * 0.015)


def test_a_measured_plan_stands_where_its_step_says(shown: Shown) -> None:
    first, second = shown.equivalent.best
    slower = dataclasses.replace(shown, measured_s={str(first.plan): 0.015})
    faster = dataclasses.replace(shown, measured_s={str(second.plan): 0.009})

    assert slower.in_order(shown.equivalent) == [second, first]
    assert slower.why_second() == (
        f"{FIRST} takes 3 ms (25.0%) longer as measured than {second.plan} as projected."
    )
    assert faster.in_order(shown.equivalent) == [second, first]
    assert faster.why_second() == (
        f"{FIRST} takes 1 ms (11.1%) longer as projected than {second.plan} as measured."
    )


def test_other_plans_stand_apart_without_a_time_to_target(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = _of("dp=2,staleness=1", 0.008)
    both = dataclasses.replace(shown, other=Ranking([fast], considered=9, projected=9))

    lines = _printed(both, capsys, monkeypatch, 80)

    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    apart = text.partition("Plans that are not equivalent")[2]
    assert "dp=2,staleness=1 8 ms" in apart
    assert "unknown" in apart
    assert "a step of dp=2,staleness=1 is projected to be 20.0% shorter" in apart.lower()


def test_a_measured_step_makes_a_plan_faster_without_a_range(shown: Shown) -> None:
    first, second = shown.equivalent.best
    within = dataclasses.replace(shown, current=second)  # 20 % slower, and 25 % may be an error
    both = {str(first.plan): 0.0100, str(second.plan): 0.0101}
    slow = dataclasses.replace(shown, current=_of("dp=1", 0.014))

    assert shown.faster() == within.faster() == []
    assert [each for each, _ in slow.faster()] == [first]
    measured = dataclasses.replace(within, measured_s=both)
    assert [each for each, _ in measured.faster()] == [first]


def test_ranges_stand_beside_steps(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = _printed(shown, capsys, monkeypatch, 120)

    text = " ".join(" ".join(lines).split())
    assert f"{FIRST} 10 ms 9-11 ms" in text
    assert "nine of ten errors are within 10.0%, median 5.0%, worst 30.0%, 20 results" in text
    assert "(twenty runs of a test)" in text
    assert json.loads(json.dumps(plans_json(shown)))["equivalent"]["plans"][0][
        "step_range_s"
    ] == pytest.approx([0.009, 0.011])


def test_small_sizes_have_three_digits_too(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(shown.equivalent.best[0], memory=(Memory(20_400_000, 0, 0, 0, 0),))
    ranking = dataclasses.replace(shown.equivalent, best=[small])

    lines = _printed(dataclasses.replace(shown, equivalent=ranking), capsys, monkeypatch, 200)

    assert "20.4 MB" in "\n".join(lines)


def test_what_was_left_is_said(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dataclasses.replace(shown.equivalent, left=3, left_at_least_s=0.011)

    lines = _printed(
        dataclasses.replace(shown, equivalent=left, samples_to_target=None),
        capsys,
        monkeypatch,
        200,
    )

    text = "\n".join(lines)
    assert "but 3 were too long to simulate; these take 11 ms at least." in text
    assert "target: unknown" in text


def test_json_has_the_figures_of_every_plan(shown: Shown) -> None:
    found = json.loads(json.dumps(plans_json(shown)))

    assert found["other"] is None
    assert found["samples_to_target"] == 9600.0
    assert found["why_second"].endswith("3 ms a step against 0 us.")
    first = found["equivalent"]["plans"][0]
    assert first["plan"] == FIRST
    assert first["step_s"] == 0.010
    assert first["time_to_target_s"] == pytest.approx(3.0)
    assert first["memory_bytes"] == [2_600_000_000]
    assert sum(first["parts_s"].values()) == pytest.approx(0.010)
    assert found["equivalent"]["considered"] == 1234
