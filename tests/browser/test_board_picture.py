"""The picture in README.md shows the board that is published."""

from __future__ import annotations

from tests.browser.picture import BOARD, PICTURE, headline, text_of


def test_the_picture_is_of_the_published_board() -> None:
    shown, published = text_of(PICTURE.read_bytes()), headline(BOARD.read_text(encoding="utf-8"))

    assert shown == published, "make it again: python -m tests.browser.picture"


def test_a_board_with_another_number_has_another_text() -> None:
    page = BOARD.read_text(encoding="utf-8")

    assert headline(page.replace("dp 1<", "dp 3<")) != headline(page)
