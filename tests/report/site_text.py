"""Read pages of the site as a browser without scripts shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

HIDDEN = {"style", "script"}
AXES = {"tick", "data-size"}  #: numbers of axes and heads, which are no results
VOID = {"meta", "input", "br", "link"}


@dataclass
class Shown:
    """What a page holds."""

    numbers: list[tuple[str, str]] = field(default_factory=list)  #: column and text
    of_rows: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  #: the same by row id
    other: list[str] = field(default_factory=list)  #: text outside of these
    tags: set[str] = field(default_factory=set)
    attributes: set[tuple[str, str]] = field(default_factory=set)  #: but those of drawings
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.shown = Shown()
        self._open: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.shown.tags.add(tag)
        self.shown.ids |= {named["id"] or ""} if "id" in named else set()
        if "href" in named:
            self.shown.links.append(named["href"] or "")
        if not any(name == "svg" for name, _ in self._open) and tag != "svg":
            self.shown.attributes |= {(tag, name) for name in named}
        if tag not in VOID:
            self._open.append((tag, named))

    def handle_endtag(self, tag: str) -> None:
        name, _ = self._open.pop()
        assert name == tag, f"<{name}> ends with </{tag}>"

    def handle_data(self, data: str) -> None:
        if not data.strip() or any(name in HIDDEN for name, _ in self._open):
            return
        if any(AXES & {*each, *(each.get("class") or "").split()} for _, each in self._open):
            return
        columns = [each["data-c"] for _, each in self._open if "data-c" in each]
        rows = [each["id"] for name, each in self._open if name == "tr" and "id" in each]
        if not columns:
            self.shown.other.append(data)
            return
        pair = str(columns[-1]), data.strip()
        self.shown.numbers.append(pair)
        if rows:
            self.shown.of_rows.setdefault(str(rows[-1]), []).append(pair)


def read_page(text: str) -> Shown:
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser._open == []
    return parser.shown
