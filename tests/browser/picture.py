"""Make docs/leaderboard.png from the published board: ``python -m tests.browser.picture``.

The picture carries the text of the table that it shows, so that a test can tell when it is stale.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
import zlib
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from tests.browser.conftest import FLAGS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BOARD", "PICTURE", "headline", "text_of"]

BOARD = ROOT / "reports" / "index.html"
PICTURE = ROOT / "docs" / "leaderboard.png"
_KEY = b"Description"  # of the keywords that the PNG specification registers
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def headline(page: str) -> str:
    """Return the text of the table of the fastest plans in the HTML ``page``."""
    table = re.search(r'<table class="headline">(.*?)</table>', page, re.DOTALL)
    assert table is not None
    text = _Text()
    text.feed(table[1])
    return " ".join(text.words)


def text_of(picture: bytes) -> str:
    """Return the text that a PNG carries; "" if it has none."""
    for kind, content in _chunks(picture):
        if kind == b"iTXt" and content.startswith(_KEY + b"\0"):
            return content.rsplit(b"\0", 1)[1].decode()
    return ""


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += size + 12


def _with_text(picture: bytes, text: str) -> bytes:
    """Return the PNG ``picture`` with an iTXt chunk before its last one (PNG 3, 11.3.3.4)."""
    content = _KEY + b"\0\0\0\0\0" + text.encode()  # not compressed, no language
    parts = [_SIGNATURE]
    for kind, each in (*[*_chunks(picture)][:-1], (b"iTXt", content), (b"IEND", b"")):
        check = struct.pack(">I", zlib.crc32(kind + each))
        parts += [struct.pack(">I", len(each)), kind, each, check]
    return b"".join(parts)


def main() -> None:
    """Make the picture: the first screen, to the end of its table."""
    from playwright.sync_api import sync_playwright

    if not (program := shutil.which("chromium")):
        sys.exit("there is no chromium: install it with 'apt-get install chromium'")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=2)
        page.goto(BOARD.as_uri())
        box = page.locator(".fastest").bounding_box()
        assert box is not None
        height = box["y"] + box["height"] + 12
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": height})
        browser.close()
    PICTURE.write_bytes(_with_text(taken, headline(BOARD.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
