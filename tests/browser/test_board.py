"""What a reader of the published board sees and does, in a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from hybridperf.cli.main import main
from tests.browser.conftest import ARTEFACTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

BOARD = ROOT / "reports" / "index.html"
#: scrollable boxes that are wider inside than outside
OVERFLOWING = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => box.getAttribute("aria-label"))"""


def _ticks(page: Page, board: str) -> Locator:
    return page.locator(f"#{board}-times .tick input")


def _shown(page: Page, selector: str) -> list[str]:
    return [each.inner_text() for each in page.locator(selector).all() if each.is_visible()]


def test_at_1280_by_800_every_task_is_in_view(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD)
    boards = page.locator("section.board").count()

    rows = page.locator(".headline tbody tr").all()

    assert len(rows) == boards > 0
    for row in rows:
        box = row.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800
        assert len(row.locator("th, td").all()) == 6
        assert re.search(r"\d \xd7\s+(real|tie|undecided)\s+p [=<] ", row.inner_text())
    screenshot(page)


@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_no_table_overflows(
    width: int, open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD, width=width, color_scheme="dark" if width == 1920 else "light")

    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")

    assert page.evaluate(OVERFLOWING) == []
    page.evaluate("document.querySelector('#bert-laptop-open').scrollIntoView()")
    screenshot(page)


def test_contents_lead_to_every_board_at_its_own_anchor(open_page: Callable[..., Page]) -> None:
    page = open_page(BOARD)
    links = [link.get_attribute("href") for link in page.locator("nav a").all()]
    boards = [f"#{board.get_attribute('id')}" for board in page.locator("section.board").all()]

    page.get_by_role("navigation", name="Contents").locator('[href="#vgg-laptop-open"]').click()

    assert links == [*boards, "#how-to-read"]
    assert "#resnet-laptop-closed" in boards
    assert page.url.endswith("#vgg-laptop-open")
    top = page.evaluate("document.getElementById('vgg-laptop-open').getBoundingClientRect().top")
    assert 0 <= top < 100


def test_a_filter_hides_empty_boards_and_stands_in_the_address(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD)

    page.get_by_role("searchbox").fill("gropipe vit")

    shown = [each.get_attribute("id") for each in page.locator("section.board:visible").all()]
    assert shown == ["vit-laptop-open"]
    assert [text.split()[0] for text in _shown(page, ".headline tbody tr")] == ["vit/laptop"]
    assert _shown(page, "nav a") == ["open", "How to read this"]
    assert page.url.endswith("#?filter=gropipe+vit")
    screenshot(page)
    page.reload()
    assert page.get_by_role("searchbox").input_value() == "gropipe vit"
    assert page.locator("section.board:visible").count() == 1
    page.get_by_role("searchbox").fill("nothing that there is")
    assert page.locator("section.board:visible").count() == 0


def test_sorted_columns_stand_in_the_address(open_page: Callable[..., Page]) -> None:
    page = open_page(BOARD)
    names = "#resnet-laptop-open-times tbody th a"
    head = page.locator("#resnet-laptop-open-times").get_by_role("button", name="result")
    in_order = [name.inner_text() for name in page.locator(names).all()]

    head.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    assert "?sort=resnet-laptop-open-times.result.down" in page.url
    expected = sorted(in_order, reverse=True)
    assert [name.inner_text() for name in page.locator(names).all()] == expected
    page.reload()
    assert [name.inner_text() for name in page.locator(names).all()] == expected


def test_two_ticked_results_are_compared_by_the_text_of_compare(
    open_page: Callable[..., Page],
    screenshot: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = open_page(BOARD)
    page.evaluate("document.querySelector('#resnet-laptop-closed').scrollIntoView()")

    _ticks(page, "resnet-laptop-closed").nth(0).focus()
    page.keyboard.press("Space")
    _ticks(page, "resnet-laptop-closed").nth(1).check()

    shown = page.locator(".ticked pre").inner_text()
    screenshot(page)
    monkeypatch.setenv("COLUMNS", "100")
    names = page.locator("#resnet-laptop-closed-times tbody th a").all()
    results = ROOT / "submissions" / "hybridperf" / "results"
    main(["compare", *(str(results / name.inner_text() / "resnet-laptop") for name in names[:2])])
    assert shown == capsys.readouterr().out.rstrip("\n")
    for words in ("95 % interval", "p = ", "samples to converge", "differs: plan: "):
        assert words in shown
    assert page.url.count("tick=result-hybridperf-") == 2
    page.reload()
    assert page.locator(".ticked pre").inner_text() == shown
    page.get_by_role("button", name="Untick all").click()
    assert not page.locator(".ticked").is_visible()
    assert "tick" not in page.url


def test_results_that_cannot_be_compared_are_so_in_one_sentence(
    open_page: Callable[..., Page],
) -> None:
    page = open_page(BOARD)

    _ticks(page, "bert-laptop-closed").first.check()
    _ticks(page, "vgg-laptop-open").first.check()

    text = page.locator(".ticked pre").inner_text()
    assert text.startswith("expected a result of 'bert/laptop', found one of 'vgg/laptop'; ")
    assert not page.locator(".ticked figure").is_visible()


def test_curves_of_ticked_results_lie_in_one_panel(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD)

    for nth in range(3):
        _ticks(page, "vit-laptop-open").nth(nth).check()

    drawn = page.locator(".ticked svg use.series")
    dashes = drawn.evaluate_all("all => all.map((one) => getComputedStyle(one).strokeDasharray)")
    assert len(set(dashes)) == 3
    assert len(_shown(page, ".ticked figcaption span")) == 3
    heights = drawn.evaluate_all("all => all.map((one) => one.getBBox().height)")
    assert all(height > 0 for height in heights)
    screenshot(page)


def test_methods_that_missed_in_every_run_are_folded(open_page: Callable[..., Page]) -> None:
    page = open_page(BOARD)
    fold = page.locator("#bert-laptop-open details.missed")

    assert not fold.locator("table").is_visible()
    assert "missed the target in every run" in fold.locator("summary").inner_text()
    fold.locator("summary").click()
    assert fold.locator("tbody tr").count() == fold.locator("figure").count() > 0
    assert page.locator("section.board figure:visible").count() > 0


def test_every_result_links_to_its_files_and_reproduces_by_commit(
    open_page: Callable[..., Page],
) -> None:
    page = open_page(BOARD)
    rows = page.locator("tr[data-result]").all()

    for row in rows:
        addresses = [link.get_attribute("href") or "" for link in row.locator(".level a").all()]
        assert len(addresses) == 3
        assert all((BOARD.parent / unquote(each)).is_file() for each in addresses)
    address = page.locator("#resnet-laptop-closed-times tbody th a").first.get_attribute("href")
    page.locator("#resnet-laptop-closed-times tbody th a").first.click()
    details = page.locator(f"details[open]{address}")
    details.wait_for()
    steps = details.locator("pre").inner_text()
    assert re.match(r"git checkout [0-9a-f]{40}\b", steps)
    assert "\nhybridperf run resnet/laptop --plan dp=" in steps
    assert details.locator(".attempts a").count() == 20


def test_prints_without_lost_columns_and_each_task_on_its_own_page(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    width = round((297 - 2 * 14) / 25.4 * 96)  # A4 landscape without its margins
    page = open_page(BOARD, width=width, height=700)
    page.emulate_media(media="print")

    lost = page.evaluate(
        """() => [...document.querySelectorAll("section th, section td, section svg")]
        .filter((cell) => cell.getBoundingClientRect().right > innerWidth + 1)
        .map((cell) => cell.textContent)"""
    )
    breaks = page.locator("section.board").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).breakBefore)"
    )

    assert lost == []
    assert set(breaks) == {"page"}
    page.evaluate("document.querySelector('#resnet-laptop-closed').scrollIntoView()")
    screenshot(page)
    page.emulate_media()
    pdf = page.pdf(prefer_css_page_size=True, path=ARTEFACTS / "board.pdf")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert len(breaks) + 2 <= pages <= 3 * len(breaks)


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320), ("dark", 320)]
)
def test_axe_finds_no_violation(
    scheme: str,
    width: int,
    open_page: Callable[..., Page],
    screenshot: Callable[..., None],
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    page = open_page(BOARD, width=width, color_scheme=scheme)
    _ticks(page, "resnet-laptop-closed").nth(0).check()
    _ticks(page, "resnet-laptop-closed").nth(1).check()
    page.locator("details.missed summary").first.click()
    page.locator("section.board .details summary").first.click()
    page.evaluate("document.querySelector('#resnet-laptop-closed').scrollIntoView()")
    screenshot(page)

    found = axe.Axe().run(page)

    assert found.response["violations"] == [], found.generate_report()


def test_at_320_px_nothing_is_wider_than_the_screen(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD, width=320, height=640)

    assert page.evaluate("document.documentElement.scrollWidth") == 320
    wide = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert page.locator(".scroll:has(.times), .scroll:has(.headline)").evaluate_all(wide) == 0
    page.evaluate("document.querySelector('#resnet-laptop-open').scrollIntoView()")
    screenshot(page)


def test_without_scripts_everything_can_be_read(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD, java_script_enabled=False)

    assert page.locator(".headline tbody tr").first.is_visible()
    assert page.locator("section.board").first.is_visible()
    assert page.locator(".tick:visible, .filter:visible, .ticked:visible").count() == 0
    page.locator("details.missed summary").first.click()
    assert page.locator("details.missed table").first.is_visible()
    assert page.locator("tr[data-result] .level a").first.is_visible()
    screenshot(page)


def _tab_to(page: Page, selector: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(name) => document.activeElement.matches(name)", selector):
            return
    pytest.fail(f"80 times Tab, and never {selector}")


def test_the_keyboard_walks_from_a_row_to_its_comparison_and_evidence(
    open_page: Callable[..., Page],
) -> None:
    page = open_page(BOARD)

    for _ in range(2):
        _tab_to(page, "#bert-laptop-closed-times .tick input")
        page.keyboard.press("Space")

    assert page.locator(".ticked pre").inner_text().startswith("A: hybridperf ")
    focus = page.locator(":focus")
    _tab_to(page, ".name a")
    page.keyboard.press("Enter")
    page.locator("details[open]").wait_for()
    _tab_to(page, "details[open] .attempts a")
    box, dock = focus.bounding_box(), page.locator(".ticked").bounding_box()
    assert box is not None
    assert dock is not None
    assert 0 <= box["y"] <= dock["y"] - box["height"], "the dock hides the focus"
    assert focus.get_attribute("href", timeout=1000)
