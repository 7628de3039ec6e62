"""Claims as data: what a value accepts, and which files are refused, in which words."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from hybridperf.claims.claim import (
    CompareCheck,
    NoCheck,
    ProjectCheck,
    parse_value,
    read_claims,
)
from hybridperf.errors import ExitCode, UserError
from tests.claims.files import SOURCE, claim_text, one_claim, write_claims_file

if TYPE_CHECKING:
    from pathlib import Path

NONE = 'kind = "none"\nmissing = "logs"'
COMPARE = 'kind = "compare"\nresult = "a/results/b/c"\nbase = "a/results/d/c"'


@pytest.mark.parametrize(
    ("text", "least", "most", "unit"),
    [
        ("94 %", 93.5, 94.5, "%"),
        ("94%", 93.5, 94.5, "%"),
        ("79.2 %", 79.15, 79.25, "%"),
        ("up to 79.2 %", 79.15, 79.25, "%"),
        ("149 s", 148.5, 149.5, "s"),
        ("0.61 h", 0.605, 0.615, "h"),
        ("1", 0.5, 1.5, ""),
        ("-4.4 %", -4.45, -4.35, "%"),
        ("2.32x", 2.315, 2.325, "x"),
        ("1,483 images/s", 1482.5, 1483.5, "images/s"),
        ("1.75e12 parameters", 1.745e12, 1.755e12, "parameters"),
        ("5-11 %", 4.5, 11.5, "%"),
        ("5 % to 11 %", 4.5, 11.5, "%"),
        ("5\N{EN DASH}11 %", 4.5, 11.5, "%"),
        ("1.5-2x", 1.45, 2.5, "x"),
        ("about 100 years", 50, 150, "years"),
        ("about 2x", 1.5, 2.5, "x"),
        ("over 100 years", 99.5, math.inf, "years"),
        ("at least 94 %", 93.5, math.inf, "%"),
        ("at most 94 %", -math.inf, 94.5, "%"),
        ("no worse", -math.inf, math.inf, ""),
    ],
)
def test_a_value_stands_for_what_rounds_to_it(
    text: str, least: float, most: float, unit: str
) -> None:
    value = parse_value(text)

    assert (value.least, value.most) == pytest.approx((least, most))
    assert (value.unit, value.text) == (unit, text)


@pytest.mark.parametrize(
    ("text", "accepted", "refused"),
    [
        ("94 %", [93.5, 94.49], [93.49, 94.51]),
        ("over 100 years", [100.1, 1e9], [100.0, 62.0]),
        ("more than 100 years", [100.1], [100.0]),
        ("under 5 s", [4.99, -1.0], [5.0]),
        ("at least 94 %", [93.5, 200.0], [93.4]),
        ("5-11 %", [4.5, 8.0, 11.5], [4.4, 11.6]),
    ],
)
def test_a_value_accepts_what_is_within_its_bound(
    text: str, accepted: list[float], refused: list[float]
) -> None:
    value = parse_value(text)

    assert [each for each in accepted if not value.accepts(each)] == []
    assert [each for each in refused if value.accepts(each)] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "half an hour",
        "11-5 %",
        "up to 5-11 %",
        "1e99",
        "nan",
        "5..6",
        "9" * 40,
        "94 %\n",
    ],
)
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_value(text)


def test_a_file_gives_its_claims_with_their_source(tmp_path: Path) -> None:
    path = write_claims_file(tmp_path, claim_text(COMPARE), claim_text(NONE, name="A2"))

    one, two = read_claims(path)

    assert (one.id, one.statement, one.where) == ("A1", "It is so", "table 1")
    assert (one.source.title, one.source.url) == ("A paper", "https://example.org/paper")
    assert one.check == CompareCheck(("a/results/b/c",), ("a/results/d/c",))
    assert one.stated == parse_value("94 %")
    assert (two.check, two.stated) == (NoCheck("logs"), None)


def test_a_field_of_several_values_is_a_list_and_has_a_singular(tmp_path: Path) -> None:
    grid = (
        'kind = "project"\ntask = "resnet/laptop"\nplans = ["dp=2", "pp=2"]\nbase = "dp=1"\n'
        'system = "a100-sxm"\nbatches = [32, 64]\nprecision = "fp32"'
    )

    check = one_claim(tmp_path, grid).check

    assert isinstance(check, ProjectCheck)
    assert (check.tasks, check.plans, check.batches) == (
        ("resnet/laptop",),
        ("dp=2", "pp=2"),
        (32, 64),
    )


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        ('kind = "compar"', "94 %", "did you mean compare?"),
        ("", "94 %", "one of score, compare, scale, place, count, project, expression, none"),
        (f'{COMPARE}\nmetric = "tim"', "94 %", "one of time, saving, end_to_end_throughput"),
        (f'{COMPARE}\nmetrc = "time"', "94 %", "did you mean metric?"),
        (f'{COMPARE}\nmetric = ["time"]', "94 %", "one value at 'claim.1.check.metric'"),
        (f"{COMPARE}\nbases = []", "94 %", "one of 'base' and 'bases'"),
        ('kind = "compare"\nresult = "a"', "94 %", "a 'base', or a filter 'where'"),
        (f"{COMPARE}\nwhere = {{ rond = '2.1' }}", "94 %", "did you mean round?"),
        (f"{COMPARE}\nwhere = {{ accelerators = '64' }}", "94 %", "a whole number at"),
        (f"{COMPARE}\nwhere = {{ round = 2.1 }}", "94 %", "a text at 'claim.1.check.where.round'"),
        (COMPARE, "94 s", "a number with % or x at 'claim.1.value'"),
        (COMPARE, "quick", "a value such as '94 %'"),
        ('kind = "score"\nresult = "a"\nmetric = "official_minuts"', "9 s", "official_minutes?"),
        ('kind = "score"\nresult = "a"\nmetric = "official_minutes"', "9 %", "with s or min or h"),
        ('kind = "score"\nresult = "../a"\nmetric = "mean_s"', "9 s", "paths below --root"),
        ('kind = "score"\nresult = "/etc"\nmetric = "mean_s"', "9 s", "paths below --root"),
        ('kind = "score"\nresult = "a\\u202Eb"\nmetric = "mean_s"', "9 s", "paths below --root"),
        ('kind = "place"\nresult = "a"\nwhere = {}', "1", "a filter such as"),
        ('kind = "count"\nwhat = "organisations"', "1", "either a filter 'where' or 'names'"),
        ('kind = "count"\nwhat = "persons"\nnames = ["a"]', "1", "one of organisations, results"),
        ('kind = "none"', "1", "a value at 'claim.1.check.missing'"),
        ('kind = "expression"\nformula = 5', "1", "a value of type str"),
    ],
)
def test_a_check_that_is_not_one_is_refused_in_one_sentence(
    tmp_path: Path, check: str, value: str, words: str
) -> None:
    with pytest.raises(UserError) as refused:
        one_claim(tmp_path, check, value)

    assert words in str(refused.value)
    assert "claims.toml: expected " in str(refused.value)
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[source", "a TOML file"),
        ("a = " + "[" * 9999, "a TOML file"),
        ("", "a table [source]"),
        ('[source]\nurl = "https://a"', "a value at 'source.title'"),
        ('[source]\ntitle = "a"\nurl = "javascript:alert(1)"', "an address with https://"),
        ('[source]\ntitle = "a"', "1 to 1000 tables [[claim]]"),
        (f"claim = 5\n{SOURCE}", "1 to 1000 tables [[claim]]"),
        (f"claim = [5]\n{SOURCE}", "a table [[claim]] at 'claim.1'"),
        (f"{SOURCE}\n[[claims]]", "did you mean claim?"),
        (f"{SOURCE}\n{claim_text(NONE)}\n{claim_text(NONE)}", "an id of its own"),
        (f"{SOURCE}\n{claim_text(NONE, name='a b')}", "1 to 32 letters"),
        (f"{SOURCE}\n{claim_text(NONE).replace('It is so', 'x' * 2001)}", "2,000 characters"),
        (f'{SOURCE}\n[[claim]]\nid = "A1"\nstatment = "x"', "did you mean statement?"),
        (f'{SOURCE}\n[[claim]]\nid = "A1"\nstatement = "x"\nvalue = "1"', "a table [claim.check]"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(text)

    with pytest.raises(UserError) as refused:
        read_claims(path)

    assert words in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert refused.value.exit_code is ExitCode.USAGE


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(b" " * (2**20 + 1))
    (tmp_path / "bytes").write_bytes(b"\xff")

    for name in ("nowhere", "pipe", "link", "large", "bytes"):
        with pytest.raises(UserError, match="expected a"):
            read_claims(tmp_path / name)


def test_a_grid_is_bounded(tmp_path: Path) -> None:
    axes = "\n".join(
        f"{name} = {[f'dp={n}' for n in range(1, 30)]}"
        for name in ("tasks", "plans", "bases", "systems")
    )

    with pytest.raises(UserError, match="a grid of 1 to 20,000 points"):
        one_claim(tmp_path, f'kind = "project"\n{axes}\nbatches = [1]\nprecisions = ["fp32"]')
