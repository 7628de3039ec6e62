"""What the log states of a projection, against the projection and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.project import project, stated
from hybridperf.report.evidence import read_timeline
from hybridperf.untrusted import LINE_CAP_BYTES
from tests.projection.tables import FAST, equal_units, timing_of

TABLE = equal_units(8)
SLOW = Network(2, NetworkLink(0.001, 1e5))  # 1 ms, and 40 bytes of activations for each sample
PLANS = [
    *("dp=1", "dp=2", "dp=2,sync=blocking", "dp=1,microbatches=4", "dp=2,staleness=1", "tp=2"),
    *("pp=2", "pp=2,schedule=gpipe,microbatches=8", "dp=2,pp=2", "dp=2,pp=2,sync=blocking"),
    *("pp=2,schedule=interleaved", "pp=2,schedule=zbv", "dp=2,zero=1", "dp=2,zero=3"),
    *("pp=2,staleness=1,flush=off", "pp=4,microbatches=2,staleness=2,flush=off"),
]


def _stated(
    text: str, network: Network = SLOW, *, source: dict[str, object] | None = None, **keywords: Any
) -> tuple[dict[str, Any], float]:
    projection = project(
        ParallelPlan.parse(text),
        TABLE,
        timing_of(TABLE, 0.001, 0.002, 0.0005),
        network,
        global_batch_size=64,
        optimizer="sgd",
        with_timeline=True,
        **keywords,
    )
    return stated(projection, source or {}), projection.step_s


@pytest.mark.parametrize("text", PLANS)
def test_the_parts_of_every_rank_add_up_to_a_step(text: str) -> None:
    entry, step_s = _stated(text)

    parts = ("compute_s", "waiting_s", "exposed_communication_s", "optimizer_s")
    assert entry["step_s"] == pytest.approx(step_s)
    assert entry["samples_per_s"] == pytest.approx(64 / step_s, abs=1e-3)
    assert len(entry["ranks"]) == ParallelPlan.parse(text).pp
    for rank in entry["ranks"]:
        assert min(rank[part] for part in parts) >= 0
        # Without a flush, a pass of one step may wait while that of another one is counted.
        near = 1e-6 if ParallelPlan.parse(text).flush else 0.05
        assert sum(rank[part] for part in parts) == pytest.approx(step_s, rel=near)


def test_parts_are_what_they_are_by_hand() -> None:
    entry, _ = _stated("pp=2", FAST)

    # Four units of 1 ms and 2 ms, and one micro-batch of two to wait for.
    assert entry["ranks"] == [
        {
            "stage": stage,
            "compute_s": 0.024,
            "waiting_s": 0.012,
            "exposed_communication_s": 0.0,
            "optimizer_s": 0.002,
            "memory_bytes": entry["ranks"][stage]["memory_bytes"],
        }
        for stage in (0, 1)
    ]
    assert entry["ranks"][0]["memory_bytes"] > 0


@pytest.mark.parametrize("sync", ["overlapped", "blocking"])
def test_averages_that_nothing_hides_are_exposed(sync: str) -> None:
    (alone,), (both,) = (
        _stated(f"dp=2,sync={sync}", network)[0]["ranks"] for network in (FAST, SLOW)
    )

    assert alone["exposed_communication_s"] == pytest.approx(0.0, abs=1e-9)
    assert both["exposed_communication_s"] > 0.1  # 32 kB at 100 kB/s
    assert both["compute_s"] == pytest.approx(alone["compute_s"])
    assert both["optimizer_s"] == pytest.approx(alone["optimizer_s"])


@pytest.mark.parametrize(("text", "collectives"), [("dp=2", 1), ("dp=2,zero=1", 2 * 8)])
def test_what_software_adds_to_averaging_is_none_of_the_optimizers_time(
    text: str, collectives: int
) -> None:
    works = replace(SLOW, bucket_s=0.25)
    (free,), (both,) = (_stated(text, network)[0]["ranks"] for network in (SLOW, works))

    more_s = both["exposed_communication_s"] - free["exposed_communication_s"]
    assert more_s == pytest.approx(collectives * 0.25)
    assert both["optimizer_s"] == free["optimizer_s"]


@pytest.mark.parametrize("text", PLANS)
def test_the_timeline_is_of_the_last_step_as_trainers_state_it(text: str) -> None:
    plan = ParallelPlan.parse(text)
    entry, _ = _stated(text)

    timeline = read_timeline(entry["timeline"])

    steps = 1 if plan.flush else 2
    assert len(timeline) == plan.pp
    assert min(bar.start_s for rank in timeline for bar in rank) == 0
    assert len({bar.step for rank in timeline for bar in rank}) == steps
    for rank, bars in enumerate(timeline):
        kinds = [bar.kind for bar in bars]
        assert kinds.count("forward") == steps * plan.stages * plan.microbatches
        assert kinds.count("update") == steps
        assert {bar.stage for bar in bars} == set(plan.stages_of(rank))
        times = [at for bar in bars for at in (bar.start_s, bar.stop_s)]
        assert times == sorted(times), "a rank does one thing after another"
        updates = [bar.stop_s - bar.start_s for bar in bars if bar.kind == "update"]
        update_s = entry["ranks"][rank]["optimizer_s"]
        assert updates == pytest.approx([update_s] * steps, abs=2e-6), "no waiting in it"


def test_a_line_of_the_log_holds_it() -> None:
    wide = equal_units(128)
    for text in ("pp=128,microbatches=2", "dp=1,microbatches=299", "dp=1,microbatches=512"):
        projection = project(
            ParallelPlan.parse(text),
            wide,
            timing_of(wide, 1e5 / 3, 1e5 / 3, 1e5 / 3),
            SLOW,
            global_batch_size=299 * 512,
            optimizer="adamw",
            with_timeline=True,
        )
        entry = stated(projection, {"kind": "profile", "date": "2026-11-22", "sha256": "0" * 64})

        assert len(json.dumps(entry)) < LINE_CAP_BYTES - 1_000
        assert len(entry["ranks"]) == projection.plan.pp  # type: ignore[arg-type]  # a list
        assert bool(entry["timeline"]) == (text == "dp=1,microbatches=299")


def test_the_source_is_stated() -> None:
    source = {"kind": "device model", "device": "NVIDIA H100"}

    assert _stated("dp=1", source=dict(source))[0]["source"] == source
