"""The published board, as a browser shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

BOARD = ROOT / "reports" / "index.html"
CLAIMS = ROOT / "reports" / "claims.html"


def test_the_board_opens_offline_without_errors(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD)

    assert page.title()
    assert page.locator("table").count() > 0
    screenshot(page)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_the_board_leads_to_claims_with_verdicts_in_view(
    scheme: str,
    width: int,
    open_page: Callable[..., Page],
    screenshot: Callable[..., None],
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    page = open_page(BOARD, width=width, color_scheme=scheme)

    page.get_by_role("link", name="Published claims").click()

    assert page.url.endswith(CLAIMS.name)
    assert page.get_by_text("not distinguishable").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    screenshot(page)
    found = axe.Axe().run(page)
    assert found.response["violations"] == [], found.generate_report()
