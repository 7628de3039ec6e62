from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Finding
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import build_report, leaderboard_page
from tests.report.conftest import judge_by
from tests.report.hostile import STRINGS

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Result
    from tests.report.conftest import Submissions

TAGS = set(
    """
    html head meta title style script body header main section h1 h2 h3 h4 p b i a small span label
    input output div table caption thead tbody tr th td figure figcaption ul li code pre details
    summary dl dt dd svg g defs use path circle line rect text nav ul aside abbr button
    """.split()  # noqa: SIM905 - a list of words reads best as words
)


class Dom(HTMLParser):
    """What a browser would find: elements with attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "data": []}
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        data = tag == "script" and dict(attrs).get("type") == "application/json"
        self._inside = "data" if data else tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the signature is given
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.raw:
            self.raw[self._inside].append(data)
        else:
            self.text += data


def _page(submissions: Submissions) -> str:
    return leaderboard_page(boards(read_entries(submissions.root)))


def _assert_harmless(dom: Dom) -> None:
    tags = [tag for tag, _ in dom.elements]
    names = {name for _, attributes in dom.elements for name in attributes}
    links = {
        value
        for _, attributes in dom.elements
        for name, value in attributes.items()
        if name == "href"
    }

    assert (tags.count("script"), tags.count("style")) == (1 + len(dom.raw["data"]), 1)
    for text in dom.raw["data"]:
        assert "<" not in text
        json.loads(text)
    assert set(tags) <= TAGS
    assert not {name for name in names if name.startswith("on")} | (
        names & {"src", "style", "action"}
    )
    assert all(
        re.fullmatch(r"#[a-z0-9_-]+|leaderboard\.(csv|json|md)", link or "") for link in links
    )


def test_the_policy_allows_exactly_the_inlined_blocks(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14])
    dom = Dom(_page(submissions))

    policy = next(
        attributes["content"] or ""
        for tag, attributes in dom.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )

    assert policy.startswith("default-src 'none'; ")
    assert "base-uri 'none'; form-action 'none'" in policy
    for kind in ("script", "style"):
        digest = hashlib.sha256("".join(dom.raw[kind]).encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}';" in policy


def test_hostile_text_is_shown_and_nothing_else(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(result: Result) -> list[Finding]:
        text = result.package.system
        return [Finding("log.x", text, text, text)] if len(text) % 2 else []

    judge_by(monkeypatch, check)
    for number, text in enumerate(STRINGS):
        name = f"{number}{text.replace('/', chr(0x2215))}"
        submissions.add(
            [10, 11, 12, 13, 14],
            org=name,
            system=name,
            task=text,
            plan=text,
            outcomes={1: "interrupted"},
            manifest={
                "outcome": text,
                "reason": text,
                "seed": text,
                "command": text,
                "data_sha256": text,
                "plan": text,
                "code": {"suite_sha256": text, "commit": text},
                "log": {"sha256": text},
                "task": {
                    "version": text,
                    "metric": text,
                    "target": 0.98,
                    "runs": 5,
                    "sha256": text,
                },
            },
            description={"accelerator_model_name": text, text: text, "accelerators_per_node": "2"},
        )

    dom = Dom(_page(submissions))

    _assert_harmless(dom)
    for text in STRINGS:
        if text.isprintable():
            assert text in dom.text


@pytest.mark.parametrize("wrong", [None, 7, "text", [], {}, True, 1e300, "\x00\u202e"])
def test_a_manifest_may_say_anything(submissions: Submissions, wrong: object) -> None:
    fields = ("outcome", "reason", "task", "plan", "code", "log", "rescoring", "command", "system")
    submissions.add(
        [10, 11, 12],
        manifest=dict.fromkeys(fields, wrong),
        description={"number_of_nodes": wrong, "hybridperf": wrong},
    )

    _assert_harmless(Dom(_page(submissions)))


def test_results_of_other_benchmarks_may_lack_everything(submissions: Submissions) -> None:
    folder = submissions.add([10, 11, 12])
    for manifest in folder.glob("*.json"):
        manifest.unlink()
    (folder.parents[2] / "systems" / "laptop.json").write_text("not JSON")
    (folder / "result_9.txt").write_text("no log at all\n")

    page = _page(submissions)

    assert "laptop" in Dom(page).text


def test_the_page_is_small(submissions: Submissions, tmp_path: Path) -> None:
    for number in range(12):
        submissions.add([10.0 + number + run for run in range(6)], system=f"system-{number}")

    build_report(submissions.root, tmp_path / "out")

    assert (tmp_path / "out" / "index.html").stat().st_size < 300_000


def test_an_empty_page_says_how_to_begin() -> None:
    dom = Dom(leaderboard_page([]))

    _assert_harmless(dom)
    assert "No results yet" in dom.text
    assert "hybridperf run resnet/laptop" in dom.text


def test_rows_carry_permalinks_that_exist(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14], system="Ünïcode!")
    submissions.add([10, 11, 12, 13, 14], system="...")
    dom = Dom(_page(submissions))

    ids = [attributes["id"] for _, attributes in dom.elements if "id" in attributes]
    links = {
        attributes.get("href") or "" for tag, attributes in dom.elements if tag in {"a", "use"}
    }

    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
