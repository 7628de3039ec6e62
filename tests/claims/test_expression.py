"""Claims by arithmetic have the golden numbers, and what is no formula is refused in a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from hybridperf.claims.claim import ExpressionCheck
from hybridperf.claims.expression import evaluate
from hybridperf.errors import UserError
from hybridperf.projection.units import load_units
from hybridperf.tasks.schema import build

CLAIMS: Final = Path(__file__).parents[2] / "claims"
DEVICES: Final = (
    "20 (100 billion parameters)",
    "35 (175 billion parameters)",
    "200 (1,000 billion parameters)",
)


def _check(identifier: str) -> ExpressionCheck:
    """Return the check of a published claim by arithmetic."""
    rows: list[dict[str, Any]] = [
        row
        for path in CLAIMS.glob("*.toml")
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    ]
    (table,) = (row["check"] for row in rows if row["id"] == identifier)
    assert table.pop("kind") == "expression"
    return build(ExpressionCheck, table, path=identifier)


@pytest.mark.parametrize(
    ("identifier", "values"),
    [
        ("G02", [53.6, 44.8]),
        ("C01", [31.9, 62.2, 100.0, 127.7]),
        ("C02", [2.994, 2.433, 1.078]),
        ("C03", [0.61, 0.292]),
        ("C04", [1.87, 1.568]),
        ("C05", [1.30, 0.755]),
        ("C08", [14.58, 6.47]),
        ("K05", [79.7, 335.0, 355.6]),
        ("K08", [9, 27]),
        ("K09", [1600, 2800, 16000]),
    ],
)
def test_claims_by_arithmetic(identifier: str, values: list[float]) -> None:
    found = [reading.value for reading in evaluate(_check(identifier)).readings]

    assert found == [pytest.approx(each, rel=2e-3) for each in values]


def test_gpt_3_takes_a_century_where_a_device_reaches_at_most_a_third_of_its_peak() -> None:
    readings = evaluate(_check("C01")).readings

    over = [each.conditions["speed of a device"] for each in readings if each.value > 100]
    assert over == ["31.9 % of its peak", "25 % of its peak"]


@pytest.mark.parametrize(
    ("identifier", "note"),
    [
        ("C02", "images/s of a device: 1,483"),
        ("C03", "images/s of a device: 875.1"),
        ("C04", "images/s of a device: 285.5"),
        ("C05", "images/s of a device: 410.6"),
        ("C08", "images/s of a device, ViT-B/32 in 14.58 h: 1,831"),
        ("K08", "peers in one dimension: 999"),
        ("K09", f"devices of 80 GB: {', '.join(DEVICES)}"),
    ],
)
def test_what_follows_from_claims(identifier: str, note: str) -> None:
    assert note in evaluate(_check(identifier)).notes


def test_facts_are_those_of_tasks_and_devices() -> None:
    units = load_units("vit/cluster")

    def value(formula: str) -> float:
        (reading,) = evaluate(ExpressionCheck(formula)).readings
        return reading.value

    assert value("parameters[vit_cluster]") == units.parameters
    assert value("flops[vit_cluster]") == 3 * units.forward_flops
    assert value("peak_bf16[a100_sxm]") == 312e12
    assert value("peak_fp32[rtx_2080ti] / 1e12") == pytest.approx(13.4)
    assert value("memory_bytes[h100_sxm]") == 80e9


def test_a_constant_without_a_source_is_noted() -> None:
    check = ExpressionCheck("two * three", {"two": 2.0, "three": 3.0}, {"two": "counted"})

    assert evaluate(check).notes == ("no source is stated for three",)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("shares * 2", "found 'shares' in 'shares * 2'; did you mean share?"),
        ("flops[vit_clustr]", "did you mean vit_cluster?"),
        ("qzx", "add it to the constants, with its source"),
        ("flops[a100_sxm]", "expected a formula that makes a number, found 'flops[a100_sxm]'"),
        ("share / 0", "divide by no zero"),
        ("__import__('os')", "expected arithmetic on constants and facts"),
        ("share **", "which is not a formula"),
    ],
)
def test_what_is_no_formula_is_refused_in_a_sentence(formula: str, sentence: str) -> None:
    with pytest.raises(UserError, match=r"expected .*\.|\?$") as refused:
        evaluate(ExpressionCheck(formula, {"share": 0.3}))

    assert sentence in str(refused.value)
