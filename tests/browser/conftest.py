"""A headless Chromium for the tests of pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

ROOT = Path(__file__).parents[2]
#: folder of the screenshots that tests leave to be looked at
ARTEFACTS = ROOT / ".pytest_artefacts"
FLAGS = (
    "--no-sandbox",  # root has no other way
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of this machine; tests are skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not (program := shutil.which("chromium")):
        pytest.skip("there is no chromium: install it with 'apt-get install chromium'")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open the page at a path, `1280 x 800` by default; requests and errors fail the test."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def check_request(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            problems.append(f"requested {request.url}")

    def check_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def open_at(path: Path, width: int = 1280, height: int = 800, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check_request)
        page.on("console", check_message)
        page.goto(path.as_uri())
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keep a picture of a page, under the name of the test, for people to look at."""

    def keep(page: Page, *, full: bool = False) -> None:
        ARTEFACTS.mkdir(exist_ok=True)
        name = request.node.name.replace("/", "-").replace("[", "-").rstrip("]")
        page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=full)

    return keep
