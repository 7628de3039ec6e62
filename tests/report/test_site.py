"""The site over rounds of MLPerf, built of made-up rounds and of ten published ones."""

from __future__ import annotations

import html
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.report.judgement import found_packages, judged_scores
from hybridperf.report.site import (
    anchor,
    build_site,
    compared_at_equal_size,
    placed_by_size,
    published_packages,
    site_files,
)
from hybridperf.score.history import with_context
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import decide, standing_of, with_places
from hybridperf.tasks.mlperf import benchmark_title, lineage
from tests.packages import write_result
from tests.report.site_text import read_page
from tests.score.made_up_round import judge_made_up, log_lines, write_round
from tests.score.ten_rounds import EDITIONS, NEEDS_ROUNDS, unpack_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.score.official import Official

FIRST_PAGE_BYTES = 300_000
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&lt;b&gt;\u202eabc'
MAY_STAND = {
    *("a", "b", "body", "button", "caption", "circle", "code", "div", "figure", "form", "h1", "h2"),
    *("head", "header", "html", "i", "input", "label", "line", "main", "meta", "nav", "option"),
    *("output", "p", "path", "polyline", "rect", "script", "section", "select", "small", "span"),
    *("style", "svg", "table", "tbody", "td", "text", "th", "thead", "title", "tr"),
}
#: numbers that the explanations on every page hold
EXPLAINED = {"95", "5", "10,000", "20260101"}


def _facts(nodes: int, accelerator: str = "NVIDIA H100-SXM5-80GB", **more: Any) -> dict[str, Any]:
    return {
        "division": "closed",
        "status": "Available on-premise",
        "system_name": f"{nodes} nodes of ours",
        "number_of_nodes": nodes,
        "accelerators_per_node": 8,
        "accelerator_model_name": accelerator,
    } | more


@pytest.fixture(scope="module", autouse=True)
def judged() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        judge_made_up(monkeypatch)
        yield


def _logs(time_s: float, samples: int = 2_500_000) -> list[list[str]]:
    return [log_lines(time_s + run, samples=samples) for run in range(10)]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two rounds: faster by scale and samples, one missed, one hostile."""
    root = tmp_path_factory.mktemp("made_up")
    old, new = root / "training_results_v8.0", root / "training_results_v9.0"
    write_round(old, _logs(800.0), system="one", facts=_facts(1))
    write_round(new, _logs(790.0), system="one", facts=_facts(1))
    write_round(new, _logs(115.0, 2_400_000), system="eight", facts=_facts(8))
    missed = [log_lines(100.0, status="aborted") for _ in range(2)]
    write_round(new, [*_logs(100.0)[:8], *missed], org="late", facts=_facts(8))
    write_round(new, _logs(120.0), org="<b>bold", facts=_facts(9, HOSTILE, system_name=HOSTILE))
    return root


def _built(root: Path, out: Path) -> dict[str, str]:
    written = build_site(published_packages(sorted(root.iterdir())), out)
    return {path.name: path.read_text(encoding="utf-8") for path in written}


@pytest.fixture(scope="module")
def pages(made_up: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _built(made_up, tmp_path_factory.mktemp("site"))


def _results(root: Path) -> list[Official]:
    packages = found_packages(sorted(root.iterdir()))
    return with_context(with_places(judged_scores(packages)))


def _known_texts(results: list[Official]) -> set[tuple[str, str]]:
    return {
        (name, metric.text(each) or "\N{EN DASH}")
        for each in results
        for name, metric in METRICS.items()
    }


def _names(results: list[Official]) -> list[str]:
    found = {"MLPerf"}
    for each in results:
        score = each.score
        found |= {score.org, score.system, score.benchmark, f"v{score.edition}", each.system_name}
        latest = lineage(score.benchmark, score.edition)
        found |= {each.accelerator, latest, benchmark_title(latest)}
        found |= {benchmark_title(score.benchmark, score.edition)}
        # Trends leave out the middle of long names.
        found |= {visible(each.accelerator)[:17], visible(each.accelerator)[-16:]}
        found |= {each.no_score[1], standing_of(each)[1]}
    return sorted(map(visible, found - {""}), key=len, reverse=True)


def _assert_all_printed(pages: dict[str, str], results: list[Official]) -> int:
    """Assert that ``score`` prints every number of the pages; return how many there are."""
    placed = placed_by_size(results)
    known = _known_texts([*results, *placed, *compared_at_equal_size(results)])
    names, count = _names(results), 0
    by_anchor = {(each.score.edition, anchor(each)): each for each in placed}
    for name, text in pages.items():
        if not name.endswith(".html"):
            continue
        shown = read_page(text)
        assert set(shown.numbers) <= known, (name, set(shown.numbers) - known)
        count += len(shown.numbers)
        for row, numbers in shown.of_rows.items():
            result = by_anchor[name.removeprefix("round-").removesuffix(".html"), row]
            assert {
                (column, METRICS[column].text(result) or "\N{EN DASH}") for column, _ in numbers
            } == set(numbers)
        rest = " ".join(shown.other)
        for each in names:
            rest = rest.replace(each, "")
        left = set(re.findall(r"[0-9][0-9.,]*[0-9]|[0-9]", rest))
        assert left <= EXPLAINED, (name, left)
    return count


def test_every_number_is_one_that_score_prints(pages: dict[str, str], made_up: Path) -> None:
    results = _results(made_up)
    rows = json.loads(pages["scores.json"])

    assert _assert_all_printed(pages, results)
    assert len(rows) == len(results) == 5


def test_text_of_submitters_is_escaped(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        if not name.endswith(".html"):
            continue
        shown = read_page(text)
        assert shown.tags <= MAY_STAND, shown.tags - MAY_STAND
        assert not {attribute for _, attribute in shown.attributes if attribute.startswith("on")}
        assert ("img", "src") not in shown.attributes
        assert "\u202e" not in text
    shown = read_page(pages["round-9.0.html"])
    assert any(HOSTILE.replace("\u202e", r"\u202e")[:100] in each for each in shown.other)


def test_pages_load_nothing_and_lead_to_what_exists(pages: dict[str, str]) -> None:
    shown = {name: read_page(text) for name, text in pages.items() if name.endswith(".html")}
    for name, page in shown.items():
        assert "default-src 'none'" in html.unescape(pages[name])
        assert not {each for each in page.attributes if each[1] in {"src", "srcset", "style"}}
        for link in page.links:
            if link.startswith("https://github.com/mlcommons/training_results_v"):
                continue
            file, _, target = link.partition("#")
            file = file.partition("?")[0]
            assert file in ("", *pages), (name, link)
            assert not target or target in shown[file or name].ids, (name, link)
    assert len(pages["index.html"].encode()) < FIRST_PAGE_BYTES


def test_filters_list_what_the_page_holds(pages: dict[str, str]) -> None:
    page = pages["round-9.0.html"]

    assert '<form class="filters" hidden>' in page  # until the script shows it
    names = re.findall(r'<select name="([a-z]+)"', page)
    assert names == ["round", "accelerators", "accelerator", "submitter"]  # others have one value
    assert re.findall(r'<option value="([^"]+)" data-c', page) == ["8", "64", "72"]
    assert '<option value="round-9.0.html" selected>v9.0</option>' in page


def test_rounds_are_newest_first(pages: dict[str, str]) -> None:
    links = read_page(pages["index.html"]).links

    assert links.index("round-9.0.html") < links.index("round-8.0.html")
    assert pages["index.html"].index("Fastest in") < pages["index.html"].index(">v8.0</a></th>")


def test_a_place_is_among_systems_of_equally_many_accelerators(made_up: Path) -> None:
    placed = placed_by_size(_results(made_up))

    found = {
        (each.score.edition, each.score.org, each.accelerators): str(each.place or "")
        for each in placed
    }
    assert found == {
        ("8.0", "acme", 8): "1",
        ("9.0", "acme", 8): "1",
        ("9.0", "acme", 64): "1",
        ("9.0", "late", 64): "",
        ("9.0", "<b>bold", 72): "1",
    }


def test_systems_without_accelerators_have_no_place(tmp_path: Path) -> None:
    facts = _facts(4) | {"accelerators_per_node": 0}
    write_round(tmp_path / "training_results_v8.0", _logs(800.0), facts=facts)

    (result,) = _results(tmp_path)
    (placed,) = placed_by_size([result])

    assert result.place is not None
    assert placed.place is None


def test_who_got_faster_compares_equal_hardware(made_up: Path, pages: dict[str, str]) -> None:
    (row,) = re.findall(r"<tr data-benchmark.*?</tr>", pages["faster.html"], re.DOTALL)

    assert "1 nodes of ours" not in row
    assert 'data-accelerators="8"' in row
    assert ">one</a>" in row  # and not the submitter's fastest, which has 64
    assert 'data-verdict="faster"' in row


def test_a_result_leads_to_its_public_files_and_states_its_software(tmp_path: Path) -> None:
    stack = [{"cuda_version": "12.4", "nccl_version": "2.21", "dali_version": "1"}]
    facts = _facts(1, framework="PyTorch 24.04", other_software_stack=stack)
    write_round(
        tmp_path / "training_results_v8.0", _logs(800.0), org="a c", system="x#1", facts=facts
    )

    pages = dict(site_files(_results(tmp_path)))

    top = "https://github.com/mlcommons/training_results_v8.0"
    links = read_page(pages["round-8.0.html"]).links
    assert [each for each in links if each.startswith("https:")] == [
        f"{top}/tree/main/a%20c/results/x%231/bert",
        f"{top}/blob/main/a%20c/systems/x%231.json",
        f"{top}/tree/main/a%20c/benchmarks",
    ]
    assert "PyTorch 24.04; CUDA 12.4, NCCL 2.21<" in pages["round-8.0.html"]
    assert json.loads(pages["scores.json"])[0]["software"] == "PyTorch 24.04; CUDA 12.4, NCCL 2.21"


def test_trends_name_their_lines_and_axes(pages: dict[str, str]) -> None:
    page = pages["benchmark-bert.html"]

    drawn = re.findall(r'<svg class="trend".*?</svg>', page, re.DOTALL)
    assert len(drawn) == 3  # per accelerator, at 8 and at 64
    assert all(">NVIDIA H100 SXM</text>" in each for each in drawn)
    assert [re.findall(r'class="strong"[^>]*>([^<]+)<', each)[0] for each in drawn] == [
        "accelerator-minutes, min",
        "official, min",
        "official, min",
    ]
    assert all(each.count('class="tick') > 1 for each in drawn)
    assert "<h1>BERT</h1>" in page


def test_names_of_lines_do_not_overlap(tmp_path: Path) -> None:
    for number in range(9):  # equally fast, so that all names want the same place
        facts = _facts(1, f"Device {number}")
        write_round(tmp_path / "training_results_v8.0", _logs(800.0), org=f"{number}", facts=facts)

    page = dict(site_files(_results(tmp_path)))["benchmark-bert.html"]

    picture = re.search(r'<svg class="trend".*?</svg>', page, re.DOTALL)
    assert picture is not None
    names = re.findall(r'class="name [a-z0-9]+" x="([0-9.]+)" y="([0-9.]+)">', picture[0])
    heights = sorted(float(y) for _, y in names)
    assert len({x for x, _ in names}) == 1
    assert len(heights) == 9
    assert min(high - low for low, high in itertools.pairwise(heights)) >= 12
    assert 0 < heights[0] < heights[-1] < 290


def test_the_same_rounds_make_the_same_site(
    made_up: Path, pages: dict[str, str], tmp_path: Path
) -> None:
    assert _built(made_up, tmp_path) == pages


def test_a_result_without_a_score_says_why(pages: dict[str, str]) -> None:
    assert "2 logs invalid by" in pages["round-9.0.html"]
    index = read_page(pages["index.html"])
    assert not any("late" in each for each in index.other)


def _result(root: Path, edition: str, system: str) -> Official:
    (found,) = (
        each
        for each in _results(root)
        if (each.score.edition, each.score.org, each.score.system) == (edition, "acme", system)
    )
    return found


def test_an_improvement_is_decomposed_as_compare_does(made_up: Path) -> None:
    old, new = _result(made_up, "8.0", "one"), _result(made_up, "9.0", "eight")

    assert new.context is not None
    improvement = new.context.improvement
    assert improvement is not None
    assert (improvement.since, improvement.system) == ("8.0", "one")
    assert improvement.why == decide(old, new).why
    why = improvement.why
    assert why.accelerators_ratio == 8
    assert why.accelerator_seconds_per_sample_ratio is not None
    assert improvement.ratio == pytest.approx(119.5 / 804.5)
    assert improvement.ratio == pytest.approx(
        why.samples_ratio * why.accelerator_seconds_per_sample_ratio / why.accelerators_ratio
    )
    assert (improvement.verdict, improvement.cause) == ("faster", "scale")
    slower = _result(made_up, "9.0", "one")  # not the submitter's best
    assert slower.context is not None
    assert slower.context.improvement is None


def test_efficiency_is_relative_to_the_smallest_system(made_up: Path) -> None:
    one, eight = (_result(made_up, "9.0", system) for system in ("one", "eight"))

    assert eight.context is not None
    assert eight.context.smallest == "one"
    efficiency = eight.context.efficiency
    assert efficiency is not None
    assert efficiency.by_time_to_train == pytest.approx(794.5 / (119.5 * 8))
    assert one.context is not None
    assert one.context.efficiency is None


@pytest.mark.parametrize(
    ("time_s", "samples", "nodes", "accelerator", "cause"),
    [
        (400.0, 2_500_000, 1, "NVIDIA H100-SXM5-80GB", "software"),
        (400.0, 2_500_000, 1, "NVIDIA H200-SXM5-141GB", "hardware"),
        (400.0, 1_250_000, 1, "NVIDIA H100-SXM5-80GB", "convergence"),
        (400.0, 2_500_000, 2, "NVIDIA H200-SXM5-141GB", "scale"),
        (800.0, 2_500_000, 1, "NVIDIA H100-SXM5-80GB", None),
        (805.0, 2_500_000, 1, "NVIDIA H100-SXM5-80GB", "software"),
        (1600.0, 2_500_000, 1, "NVIDIA H100-SXM5-80GB", "software"),
        (1600.0, 2_500_000, 1, "NVIDIA A100-SXM4-80GB", "hardware"),
        (1600.0, 5_000_000, 1, "NVIDIA H100-SXM5-80GB", "convergence"),
    ],
)
def test_what_made_a_result_faster_or_slower(
    tmp_path: Path, time_s: float, samples: int, nodes: int, accelerator: str, cause: str | None
) -> None:
    write_round(tmp_path / "training_results_v8.0", _logs(800.0), facts=_facts(1))
    new = tmp_path / "training_results_v9.0"
    write_round(new, _logs(time_s, samples), facts=_facts(nodes, accelerator))

    (_, result) = _results(tmp_path)

    assert result.context is not None
    assert result.context.improvement is not None
    assert result.context.improvement.cause == cause


@pytest.mark.parametrize("text", ["[1.1]", "{", '{"scaling_factor": 0}'])
def test_a_result_with_a_malformed_factor_has_no_score_and_no_traceback(
    tmp_path: Path, text: str
) -> None:
    folder = write_round(tmp_path / "training_results_v8.0", _logs(200.0), facts=_facts(1))
    (folder / "scaling.json").write_text(text)

    (result,) = _results(tmp_path)
    pages = dict(site_files([result]))

    assert result.minutes is None
    assert "scaling.json" in pages["round-8.0.html"]
    assert "benchmark-bert.html" not in pages


def test_a_smaller_system_is_slower_by_its_scale(tmp_path: Path) -> None:
    write_round(tmp_path / "training_results_v8.0", _logs(200.0), facts=_facts(8))
    write_round(tmp_path / "training_results_v9.0", _logs(800.0), facts=_facts(1))

    (_, result) = _results(tmp_path)

    assert result.context is not None
    assert result.context.improvement is not None
    improvement = result.context.improvement
    assert (improvement.verdict, improvement.cause) == ("slower", "scale")
    assert "scale" in dict(site_files(_results(tmp_path)))["benchmark-bert.html"]


@pytest.mark.parametrize("time_s", [0.0, -100.0])
def test_logs_that_end_before_they_begin_have_no_score(tmp_path: Path, time_s: float) -> None:
    folder = tmp_path / "training_results_v8.0"
    write_round(folder, [log_lines(time_s) for _ in range(10)], facts=_facts(1))
    write_round(folder, _logs(100.0), org="good", facts=_facts(1))

    (wrong, good) = _results(tmp_path)
    pages = dict(site_files([wrong, good]))
    alone = dict(site_files([wrong]))

    assert wrong.minutes is None
    assert standing_of(wrong) == ("invalid", "by its logs, it took no time")
    assert good.minutes == pytest.approx(104.5 / 60)
    assert "by its logs, it took no time" in pages["round-8.0.html"]
    assert "acme" not in pages["benchmark-bert.html"]
    assert set(alone) == {
        *("index.html", "faster.html", "round-8.0.html", "scores.csv", "scores.json")
    }


def test_results_of_two_kinds_are_refused(tmp_path: Path) -> None:
    write_round(tmp_path / "training_results_v8.0", _logs(800.0), facts=_facts(1))
    write_result(tmp_path / "ours")

    with pytest.raises(UserError, match="name folders of one kind") as refusal:
        published_packages([tmp_path])

    assert refusal.value.exit_code == ExitCode.USAGE


@NEEDS_ROUNDS
@pytest.mark.exhaustive
def test_every_number_of_ten_published_rounds(tmp_path_factory: pytest.TempPathFactory) -> None:
    rounds = unpack_rounds(tmp_path_factory.getbasetemp())
    packages = found_packages([rounds / f"training_results_v{edition}" for edition in EDITIONS])
    results = with_context(with_places(judged_scores(packages)))

    pages = dict(site_files(results))

    assert _assert_all_printed(pages, results) > 1000
    assert len(pages["index.html"].encode()) < FIRST_PAGE_BYTES
    assert {f"round-{edition}.html" for edition in EDITIONS} < set(pages)
    # A benchmark that was renamed has one page over the rounds.
    assert "earlier <code>ssd</code>" in pages["benchmark-retinanet.html"]
