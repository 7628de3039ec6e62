"""What holds on every page: shell blocks that work, an index of all pages, a complete reference."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from hybridperf.cli.main import COMMANDS
from tests.docs.conftest import EXECUTED_PAGES, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS: Final = ROOT / "docs"
SHELLS: Final = {"sh", "bash", "shell", "console", "zsh"}
#: what no test has, and the reason why a block is not executed
MARKS: Final = {
    "needs-data": "data of gigabytes",
    "needs-gpus": "accelerators",
    "needs-idle-cores": "a measurement of this machine, which is refused while it is busy",
    "needs-key": "a private key of the reader",
    "needs-network": "an installation from a package registry",
    "needs-nodes": "several machines",
    "needs-own-project": "a repository or results of the reader",
}
_FENCE: Final = re.compile(r"^ *```(\S*) *([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of shell commands of a page."""

    place: str  #: page and line
    mark: str  #: the rest of the info string
    lines: tuple[str, ...]  #: commands, without comments


def _shell_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        if found[1] in SHELLS:
            line = text.count("\n", 0, found.start()) + 1
            yield Block(f"{page.relative_to(ROOT)}:{line}", found[2].strip(), _lines(found[3]))


def _lines(block: str) -> tuple[str, ...]:
    bare = (re.sub(r"(^|\s+)#.*", "", line).strip() for line in block.splitlines())
    return tuple(filter(None, bare))


def unexecuted(pages: list[Path]) -> list[str]:
    """Return where shell blocks are that no test executes and no mark explains."""
    executed = {
        line for page in EXECUTED_PAGES for block in blocks(page, "sh") for line in _lines(block)
    }
    return [
        block.place
        for page in pages
        for block in _shell_blocks(page)
        if block.mark not in MARKS and (block.mark or not executed.issuperset(block.lines))
    ]


def test_every_shell_block_is_executed_by_a_test_or_marked_as_needing_something() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

    assert unexecuted(pages) == []
    for page in EXECUTED_PAGES:
        assert (ROOT / f"tests/docs/test_{page}.py").is_file()


@pytest.mark.parametrize(
    ("fence", "found"),
    [
        ("```sh\nhybridperf run bert/laptop\n```\n", 1),
        ("```bash\nhybridperf list\n```\n", 1),
        ("1. A step:\n\n   ```console\n   hybridperf list\n   ```\n", 1),
        ("```sh needs-luck\nhybridperf list\n```\n", 1),
        ("```sh needs-gpus\nhybridperf list\n```\n", 0),
        ("```sh\nhybridperf report runs   # as in the quick start\n```\n", 0),
        ("```text\nhybridperf list\n```\n", 0),
    ],
)
def test_a_block_that_nothing_executes_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fence: str, found: int
) -> None:
    monkeypatch.setattr("tests.docs.test_pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{fence}", encoding="utf-8")

    assert len(unexecuted([page])) == found


def test_the_index_has_four_doors_and_a_sentence_for_each_page_behind_them() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    titles, groups = re.split(r"^## (.*)$", index, flags=re.MULTILINE)[1::2], []
    for group in re.split(r"^## .*$", index, flags=re.MULTILINE)[1:]:
        (tree,) = re.findall(r"```{toctree}\n.*?\n\n(.*?)```", group, re.DOTALL)
        sentences = re.findall(
            r"^\* \[[^\]]+\]\((\w+)\.md\): .+?[.]$", group, re.MULTILINE | re.DOTALL
        )
        assert sentences == tree.split()
        groups += sentences

    assert titles == ["Measure", "Compare and believe", "Publish", "Extend"]
    assert sorted(groups) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


def test_the_reference_has_every_command_and_option_of_the_parser() -> None:
    conf: dict[str, Any] = runpy.run_path(str(DOCS / "conf.py"))
    page = conf["commands_markdown"]()

    assert re.findall(r"^## hybridperf (\w+)$", page, re.MULTILINE) == list(COMMANDS)
    for words in ("`--runs RUNS`", "`--nodes N`", "`-o FILE, --out FILE`", "| `A` |"):
        assert words in page
    assert "<!-- commands -->" in (DOCS / "reference.md").read_text(encoding="utf-8")
