"""A publisher's day: what passes, what is left out, what is packed, and what is withdrawn."""

from __future__ import annotations

import json
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import Package, result_names
from hybridperf.rules.check import check_path
from hybridperf.rules.verdict import RULESET, ResultVerdict
from hybridperf.score.validity import Judgement
from tests.packages import edit_manifest, seal, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.run.conftest import Finished

ATOM = "{http://www.w3.org/2005/Atom}"


def _valid(root: Path, system: str = "laptop", org: str = "acme") -> Package:
    return write_result(root, org=org, system=system)


def _missed(root: Path, system: str = "laptop", org: str = "acme") -> Package:
    return write_result(root, missed=[0, 1, 2], org=org, system=system)


def _provisional(root: Path, system: str = "laptop", org: str = "acme") -> Package:
    return write_result(root, times_s=(10.0, 11.0, 12.0), org=org, system=system)


def _broken(root: Path, system: str = "laptop", org: str = "acme") -> Package:
    package = write_result(root, org=org, system=system)
    edit_manifest(package, 1, seed=3)
    seal(root)
    return package


#: how a result comes about, its state, and the exit status of check, and of check --publish
STATES: dict[str, tuple[Callable[[Path], Package], int, int]] = {
    "valid": (_valid, 0, 0),
    "did not converge": (_missed, 1, 0),
    "provisional": (_provisional, 0, 3),
    "broken": (_broken, 3, 3),
}


@pytest.mark.parametrize("state", STATES)
def test_one_word_for_one_state_and_a_status_for_each(
    hybridperf: Callable[..., Finished], tmp_path: Path, state: str
) -> None:
    make, status, when_published = STATES[state]
    package, out = make(tmp_path / "in"), tmp_path / "out"
    other = write_result(tmp_path / "in", system="other", times_s=(20.0, 21.0, 22.0, 23.0, 24.0))

    checked = hybridperf("check", str(package.folder))
    published = hybridperf("check", str(package.folder), "--publish", "--json")
    scored = hybridperf("score", str(package.folder))
    compared = hybridperf("compare", str(package.folder), str(other.folder))
    reported = hybridperf("report", str(tmp_path / "in"), "--out", str(out))
    row = next(
        row
        for row in json.loads((out / "leaderboard.json").read_text())["results"]
        if row["system"] == "laptop"
    )

    assert (checked.code, published.code) == (status, when_published)
    word = "BROKEN" if state == "broken" else state
    assert f"1 result: 1 {word}" in checked.out
    assert f"{package.folder}: {word} by hybridperf-1.0" in checked.out
    assert ("INVALID" in checked.out) is (state == "broken")  # its log
    assert [each["judgement"] for each in json.loads(published.out)["results"]] == [state]
    assert row["standing"] == ("ranked" if state == "valid" else state)
    assert reported.code == (3 if state == "broken" else 0)
    if state != "valid":
        assert state in (out / "index.html").read_text()
    if state == "broken":
        assert "broken" in reported.err
    else:
        assert "invalid" not in (scored.out + compared.out + reported.err).lower()


@pytest.mark.parametrize("judgement", Judgement)
def test_the_table_of_exit_statuses_is_what_check_does(
    tmp_path: Path, judgement: Judgement
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{judgement}` |"))
    _, _, _, check, publish, *_ = (cell.strip() for cell in row.split("|"))
    package = Package(tmp_path, "acme", "laptop", "resnet-laptop")
    result = ResultVerdict(package, RULESET, "closed", judgement, "", ())

    said = (str(int(result.status())), str(int(result.status(publish=True))))

    # What cannot be read is not judged, and has a status of its own.
    assert (check.removesuffix(" or 4"), publish.removesuffix(" or 4")) == said


def test_too_few_runs_are_no_error_and_say_how_many_are_missing(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    package = _provisional(tmp_path)

    done = hybridperf("check", str(package.folder))

    assert done.code == 0
    assert not any(line.startswith("error") for line in done.out.splitlines())
    assert "expected 5 completed runs, found 3" in done.out
    assert "give the command again with --runs 5: it makes the 2 missing runs." in done.out


# What a report leaves out.


def test_a_report_names_what_it_left_out(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _valid(tmp_path / "in", org="good")
    _broken(tmp_path / "in")
    stray = tmp_path / "in" / "zeta" / "laptop" / "result_0.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text(":::MLLOG {}\n")

    done = hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))

    assert done.code == 3
    lines = done.err.splitlines()
    assert lines[0].startswith("hybridperf: left out: acme/results/laptop/resnet-laptop: broken: ")
    assert f"left out: {stray.parent}: logs in no folder" in lines[1]
    assert lines[2].startswith("hybridperf: 2 results left out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Left out: broken results" in page
    assert "Broken, and therefore left out:" in (tmp_path / "out" / "leaderboard.md").read_text()


def test_a_folder_without_results_is_refused_in_one_sentence(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()

    done = hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))

    assert done.code == 4
    assert "expected results, in <org>/results/<system>/<benchmark>, found none" in done.sentence
    assert not (tmp_path / "out").exists()


# Submitting.


def _fill(root: Path) -> None:
    _valid(root, system="one")
    _missed(root, system="two")
    _provisional(root, system="three")
    _broken(root, system="four")
    _valid(root, org="other")
    (root / "acme" / "results" / "one" / "resnet-laptop" / ".lock").write_text("1")


def test_a_submission_holds_what_may_be_published(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _fill(tmp_path / "runs")
    out = tmp_path / "submission"

    done = hybridperf("submit", str(tmp_path / "runs"), "--org", "acme", "--out", str(out))
    again = hybridperf("submit", str(tmp_path / "runs"), "--org", "acme", "--out", str(out))

    assert done.code == 0
    assert done.out.startswith(f"2 results of acme in {out}\n")
    left_out = [line.split(": ")[2:4] for line in done.err.splitlines()]
    assert left_out == [
        ["acme/results/four/resnet-laptop", "broken"],
        ["acme/results/three/resnet-laptop", "provisional"],
        ["other/results/laptop/resnet-laptop", left_out[2][1]],
    ]
    assert "make its runs with --org acme" in done.err
    verdict = check_path(out)
    assert [each.judgement for each in verdict.results] == [Judgement.VALID, Judgement.MISSED]
    assert {path.name for path in out.rglob("*.json") if path.parent.name == "systems"} == {
        "one.json",
        "two.json",
    }
    assert not list(out.rglob(".*"))
    assert again.code == 2
    assert "expected a new folder or file, found one that is there" in again.sentence


def test_an_archive_holds_the_same_files_and_always_the_same_bytes(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _fill(tmp_path / "runs")
    outs = [tmp_path / name for name in ("folder", "one.tar.gz", "two.tar.gz")]

    for out in outs:
        hybridperf("submit", str(tmp_path / "runs"), "--org", "acme", "--out", str(out))

    folder, one, two = outs
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        packed = {each.name for each in archive.getmembers()}
    assert packed == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }


def test_a_text_that_may_identify_somebody_is_not_submitted(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    package = _valid(tmp_path / "runs")
    edit_manifest(package, 0, command="hybridperf run resnet/laptop --data-dir /home/wilhelmina/x")
    seal(tmp_path / "runs")

    done = hybridperf("submit", str(package.root), "--org", "acme", "--out", str(tmp_path / "out"))

    assert done.code == 3
    assert "command in acme/results/laptop/resnet-laptop/result_0.json may name" in done.err
    assert "wilhelmina" not in done.err
    assert not (tmp_path / "out").exists()


# Superseded and withdrawn results.


def _withdraw(root: Path, name: str, **more: str) -> None:
    fields = {"result": f'"{name}"', "date": "2026-11-25", "reason": '"another driver"'} | more
    with (root / "withdrawn.toml").open("a") as file:
        file.write("[[withdrawn]]\n")
        file.writelines(f"{key} = {value}\n" for key, value in fields.items())


def test_a_superseded_row_stays_with_date_and_reason(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    old = _valid(root, system="old")
    new = write_result(root, system="new", times_s=(20.0, 21.0, 22.0, 23.0, 24.0))
    _withdraw(root, old.name, superseded_by=f'"{new.name}"')

    checked = hybridperf("check", str(root), "--publish")
    reported = hybridperf("report", str(root), "--out", str(out))
    rows = json.loads((out / "leaderboard.json").read_text())["results"]

    assert (checked.code, reported.code) == (0, 0)
    assert "2 results: 1 valid, 1 superseded" in checked.out
    assert {row["system"]: row["standing"] for row in rows} == {
        "new": "ranked",
        "old": "superseded",
    }
    words = f"superseded on 2026-11-25 by {new.name}: another driver"
    assert words in (out / "index.html").read_text()
    assert {row["system"]: row["place_best"] for row in rows} == {"new": 1, "old": None}
    feed = ET.parse(out / "feed.xml").getroot()
    titles = [entry.findtext(f"{ATOM}title") or "" for entry in feed.iter(f"{ATOM}entry")]
    assert [title for title in titles if words in title]


def test_a_broken_result_that_is_withdrawn_holds_up_nobody(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _valid(tmp_path, system="good")
    bad = _broken(tmp_path, system="bad")
    (bad.folder / "result_3.txt").write_text("")
    assert hybridperf("check", str(tmp_path), "--publish").code == 3

    _withdraw(tmp_path, bad.name)

    done = hybridperf("check", str(tmp_path), "--publish")
    assert done.code == 0, done.out
    assert "1 withdrawn" in done.out
    assert "withdrawn on 2026-11-25: another driver" in done.out


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"date": '"2026-11-25"'}, "expected a date such as 2026-11-25 in [[withdrawn]] 1"),
        ({"reason": '""'}, "expected a reason of 1 to 300 characters"),
        ({"result": '"acme/results/none/resnet-laptop"'}, "expected a result that is there"),
        ({"result": '"../in/acme/results/laptop/resnet-laptop"'}, "expected a result that is"),
        ({"superseded_by": "3"}, "expected a result that is there"),
        ({"by": '"me"'}, "expected keys date, reason, result, superseded_by"),
    ],
)
def test_a_withdrawal_that_cannot_be_understood_is_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path, fields: dict[str, str], found: str
) -> None:
    package = _valid(tmp_path / "in")
    _withdraw(package.root, package.name, **fields)

    for command in ("check", "score", "report"):
        done = hybridperf(command, str(package.root))
        assert done.code == 3
        assert found in done.sentence


# History, feed and badges.


def test_the_feed_tells_results_in_the_order_of_their_dates(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    write_result(tmp_path / "in", system="slow", times_s=(20.0, 21.0, 22.0, 23.0, 24.0))
    write_result(tmp_path / "in", system="fast", times_s=(10.0, 11.0, 12.0, 13.0, 14.0, 15.0))

    hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    feed = ET.parse(tmp_path / "out" / "feed.xml").getroot()
    entries = list(feed.iter(f"{ATOM}entry"))
    dates = [entry.findtext(f"{ATOM}updated") or "" for entry in entries]
    page = (tmp_path / "out" / "index.html").read_text()

    assert feed.findtext(f"{ATOM}updated") == dates[0] == max(dates)
    assert [(", fast under" in (entry.findtext(f"{ATOM}title") or "")) for entry in entries] == [
        True,
        False,
    ]
    kinds = [category.get("term") for category in feed.iter(f"{ATOM}category")]
    assert kinds == ["record", "result"]
    assert len({entry.findtext(f"{ATOM}id") for entry in entries}) == 2
    for link in (entry.find(f"{ATOM}link") for entry in entries):
        assert link is not None
        assert f'id="{(link.get("href") or "").partition("#")[2]}"' in page
    assert "2 events, the latest first" in page


def test_a_badge_names_the_fastest_result_of_its_task(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    _valid(tmp_path / "in")
    write_result(tmp_path / "in", system="open", division="open", times_s=(1.0,) * 5)

    hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))

    (badge,) = (tmp_path / "out").glob("badge_*.svg")
    assert badge.name == "badge_resnet-laptop.svg"
    svg = ET.parse(badge).getroot()
    assert [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")] == [
        "resnet/laptop",
        "12.00 s, dp=2",
    ]


def test_a_missing_log_of_a_withdrawn_run_is_not_read(tmp_path: Path) -> None:
    package = _valid(tmp_path)
    for name in result_names(2):
        (package.folder / name).unlink()
    _withdraw(tmp_path, package.name)

    verdict = check_path(tmp_path)

    assert verdict.valid
    assert verdict.findings == ()
