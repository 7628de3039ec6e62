"""What is measured over slow links, in which order, and what the tables make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridperf.plan import ParallelPlan
from tests.packages import EPOCHS, write_result
from tests.performance import methods
from tests.performance.shaped_link import LinkShape, ShapedLink, why_no_shaped_link
from tests.performance.slow_link_methods import (
    COMPARISONS,
    METHODS,
    RATES_MBIT_PER_S,
    REPETITIONS,
    TASKS,
    Record,
    add_averaging_work,
    add_link,
    add_profile,
    add_record,
    ranks_profiled,
    read_links,
    read_profiles,
    read_records,
)
from tests.performance.slow_link_tables import (
    CLEARLY,
    Crossover,
    crossovers,
    samples_to_target,
    tables,
)
from tests.performance.slow_links import World, missing
from tests.performance.test_slow_link_projection import profile

TASK = "resnet/laptop"
RECORD = Record(TASK, 100.0, "ddp", 0, 12, 0.2, 0.001, (1_070_000, 1_060_000), 1_000_000, 0.02)


def test_methods_and_comparisons_fit_together() -> None:
    keys = [method.key for method in METHODS]
    plans = [ParallelPlan.parse(method.plan) for method in METHODS]

    assert len(set(keys)) == len(keys)
    assert {method.converges_as for method in METHODS} <= {each.key for each in methods.METHODS}
    assert {key for each in COMPARISONS for key in (each.first, each.second)} <= set(keys)
    assert {plan.ranks for plan in plans} == {2, 4}
    # Of four ranks the first two are at one end: there, they are the stages of one replica.
    assert all(plan.order == "dp-pp-tp" for plan in plans if plan.ranks == 4)


def test_records_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    others = [RECORD, replace(RECORD, rate_mbit_per_s=0.0)]
    for record in others:
        add_record(path, record)

    assert read_records(path) == others
    assert read_records(tmp_path / "none.jsonl") == []


def test_profiles_of_each_repetition_stand_beside_records(tmp_path: Path) -> None:
    path, written = tmp_path / "records.jsonl", replace(profile(), task=TASK)
    four, later = replace(written, ranks=4), replace(written, contention=2.0)
    add_record(path, RECORD)
    for each, repetition in ((written, 0), (four, 0), (later, 1)):
        add_profile(path, TASK, repetition, each.as_table())
    for repetition, share in ((0, 0.5), (0, 0.25), (1, 1.5)):  # what is measured again counts
        add_averaging_work(path, TASK, repetition, 250.0, share)

    assert read_records(path) == [RECORD]
    assert read_profiles(path) == {
        (TASK, 2, 250.0): [
            replace(written, averaging_work=0.25),
            replace(later, averaging_work=1.5),
        ],
        (TASK, 4, 250.0): [replace(four, averaging_work=0.25)],
    }
    assert ranks_profiled(path, TASK, 0) == {2, 4}
    assert ranks_profiled(path, TASK, 1) == {2}


def test_links_stand_beside_records(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    transfers = {"all_reduce": [(4096, 0.1), (8192, 0.2)], "send": [(4096, 0.3)]}
    add_record(path, RECORD)
    add_link(path, 250.0, transfers)

    assert read_links(path) == {250.0: transfers}
    assert read_records(path) == [RECORD]


def test_what_is_missing_goes_on_after_an_interruption_every_second_turn_backwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.jsonl"
    places = list(missing(path, TASK))
    add_record(path, replace(RECORD, rate_mbit_per_s=places[0][1], method=places[0][2]))

    size = len(RATES_MBIT_PER_S) * len(METHODS)
    assert len(set(places)) == len(places) == size * REPETITIONS
    first, second = places[:size], places[size : 2 * size]
    assert [each[:3] for each in reversed(first)] == [each[:3] for each in second]
    assert list(missing(path, TASK)) == places[1:]
    assert set(TASKS) == {"vgg/laptop", "resnet/laptop", "bert/laptop"}


@pytest.mark.parametrize(
    ("ratios", "rates"),
    [
        ({100.0: 0.5, 400.0: 2.0}, [200.0]),
        ({100.0: 0.5, 400.0: 0.9}, []),
        ({400.0: 4.0, 100.0: 2.0, 6400.0: 0.25}, [1600.0]),
        ({10.0: 0.5, 100.0: 2.0, 1000.0: 0.5}, [31.6227766, 316.227766]),
        ({10.0: 0.5, 100.0: 1.02, 200.0: 0.98, 1000.0: 0.5}, []),
        ({10.0: 0.98, 100.0: 1.02, 1000.0: 2.0}, []),
        ({10.0: 0.5, 100.0: 0.98, 400.0: 1 / 0.98, 1000.0: 2.0}, [200.0]),
    ],
)
def test_crossovers_are_interpolated_on_log_scales(
    ratios: dict[float, float], rates: list[float]
) -> None:
    found = crossovers({rate: [each] for rate, each in ratios.items()}, 0)

    assert [each.mbit_per_s for each in found] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("ratios", "clearly", "min_mbit_per_s", "max_mbit_per_s"),
    [
        ({100.0: 0.5, 400.0: 2.0}, CLEARLY, 200 / CLEARLY, 200 * CLEARLY),
        ({25.0: 1 / CLEARLY**2, 100.0: 1.0, 400.0: CLEARLY**4}, CLEARLY, 50.0, 141.4),
        ({25.0: CLEARLY**-3, 100.0: 0.99, 400.0: 1.01, 1600.0: CLEARLY**2}, CLEARLY, 67.4, 739.0),
        ({100.0: 0.98, 0.0: 1 / 0.98}, 1.0, 100.0, 400.0),  # as far as was measured
    ],
)
def test_the_range_of_a_crossover_ends_where_times_differ_by_five_percent(
    ratios: dict[float, float], clearly: float, min_mbit_per_s: float, max_mbit_per_s: float
) -> None:
    (found,) = crossovers({rate: [each] for rate, each in ratios.items()}, 400.0, clearly)

    assert found.min_mbit_per_s == pytest.approx(min_mbit_per_s, rel=0.001)
    assert found.max_mbit_per_s == pytest.approx(max_mbit_per_s, rel=0.001)


def test_crossovers_are_compared_by_their_rates_and_by_their_ranges() -> None:
    first, second, third = (
        Crossover(200.0, 150.0, 300.0),
        Crossover(500.0, 400.0, 600.0),
        Crossover(350.0, 250.0, 900.0),
    )

    assert first.factor(second) == second.factor(first) == 2.5
    assert first.gap(second) == second.gap(first) == pytest.approx(4 / 3)
    assert first.gap(third) == second.gap(third) == 1
    assert str(first) == "200 (150 to 300)"


def test_a_crossover_is_between_rates_where_all_repetitions_agree() -> None:
    below, above = [0.5, 0.4, 0.8], [2.0, 1.1, 2.5]

    assert [each.mbit_per_s for each in crossovers({100.0: below, 0: above}, 400.0)] == [
        pytest.approx(200.0)
    ]
    assert crossovers({100.0: below, 0: [*above, 0.99, 2.0]}, 400.0) == []
    assert crossovers({100.0: [0.98], 0: [1 / 0.98]}, 400.0) == []
    (found,) = crossovers({100.0: [0.98], 0: [1 / 0.98]}, 400.0, clearly=1.0)
    assert found.mbit_per_s == pytest.approx(200.0)


def test_samples_to_target_are_the_mean_of_the_runs_that_reached_it(tmp_path: Path) -> None:
    write_result(tmp_path, division="open", system="mine-synchronous", plan="dp=2", missed=[1])
    write_result(tmp_path, division="open", system="mine-staleness-3", plan="dp=2")

    found = samples_to_target(tmp_path)

    samples = EPOCHS * 1195 // 32 * 32
    ((mean, reached, runs),) = found.values()
    assert set(found) == {(TASK, "synchronous")}
    assert (mean, runs - reached) == (samples, 1)


def test_the_tables_state_medians_shares_bytes_ratios_and_times_to_target(tmp_path: Path) -> None:
    write_result(tmp_path, division="open", system="mine-synchronous", plan="dp=2")
    records = [
        replace(RECORD, method=method, rate_mbit_per_s=rate, repetition=number, step_s=step_s)
        for method, rate, times_s in (
            ("blocking", 100.0, (0.4, 0.2, 0.4)),
            ("ddp", 100.0, (0.2, 0.1, 0.1)),
            ("blocking", 400.0, (0.05, 0.05, 0.05)),
            ("ddp", 400.0, (0.1, 0.1, 0.1)),
            ("ddp", 0.0, (0.01, 0.01, 0.01)),
        )
        for number, step_s in enumerate(times_s)
    ]

    text = tables(records, tmp_path, 10_000)

    rows = {
        tuple(cells[:2]): cells[2:]
        for line in text.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] == TASK
        and cells[1] != "DDP"
    }
    assert "| not limited | 400 Mbit/s | 100 Mbit/s |" in text
    assert rows[TASK, "DDP (`dp=2`)"] == [
        *("10.0 (10.0 to 10.0)", "100 (100 to 100); 21%", "100 (100 to 200); 86%")
    ]
    assert f"| {TASK} | DDP | 1,000,000 | 1,070,000 and 1,060,000 | 1.070 |" in text
    # The median of 0.2/0.4, 0.1/0.2, 0.1/0.4 is a half, and at 400 Mbit/s the ratio is two.
    assert rows[TASK, "overlap: DDP over blocking"] == ["", "2.00", "0.50", "200 (190 to 210)"]
    samples = EPOCHS * 1195 // 32 * 32
    runs = len(list(tmp_path.rglob("result_*.txt")))
    assert samples // 32 == 298  # steps, of 0.01 s and 0.1 s
    head = f"| {TASK} | DDP | {samples:,} ({runs} of {runs}) |"
    assert f"{head} 2.98 | 29.8 | 29.8 |" in text
    assert f"| {TASK} | delayed data parallelism | unknown |" in text


@pytest.mark.skipif(bool(reason := why_no_shaped_link()), reason=f"no shaped link: {reason}")
def test_a_step_takes_at_least_what_its_bytes_take() -> None:
    shape = LinkShape.of_rate(100e6)
    with ShapedLink() as link, World(link, "vgg/laptop", 2, ["blocking", "pp"]) as world:
        assert world.answers() == ["ready\n"] * 2
        link.shape(shape)
        found = {key: world.order(key, 2) for key in ("blocking", "pp")}
        world_pids = [process.pid for process in world._processes]

    for key, each in found.items():
        assert each["steps"] == 8
        for sent_bytes in each["sent_bytes"]:  # headers and acknowledgements are 7 %
            assert 1.03 < sent_bytes / each["counted_bytes"] < 1.1, key
            least_s = (sent_bytes - shape.burst_bytes) / shape.bytes_per_s
            assert each["step_s"] > 0.97 * least_s, key
    # Gradients of 0.77 million parameters in fp32; the cut before fc1 or so of 32 images.
    assert found["blocking"]["counted_bytes"] > 10 * found["pp"]["counted_bytes"]
    assert found["blocking"]["step_s"] > 3 * found["pp"]["step_s"]
    assert not [pid for pid in world_pids if Path(f"/proc/{pid}").exists()], "a rank is left"
