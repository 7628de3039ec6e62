"""The published board, as a browser shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

BOARD = ROOT / "reports" / "index.html"


def test_the_board_opens_offline_without_errors(
    open_page: Callable[..., Page], screenshot: Callable[..., None]
) -> None:
    page = open_page(BOARD)

    assert page.title()
    assert page.locator("table").count() > 0
    screenshot(page)
