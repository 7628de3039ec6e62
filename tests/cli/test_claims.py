"""``hybridperf claims``: what it prints, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.claims.files import SOURCE, claim_text, write_claims_file
from tests.packages import write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished

COUNT = 'kind = "count"\nwhat = "organisations"\nnames = ["a", "b"]'
NONE = 'kind = "none"\nmissing = "logs"'


def test_the_table_and_a_sentence_with_the_command_of_each(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    path = write_claims_file(tmp_path, claim_text(COUNT, "2"), claim_text(NONE, "94 %", name="A2"))

    done = hybridperf("claims", str(path), "--root", str(tmp_path))

    assert done.code == 0
    head, _, first, second, *rest = done.out.splitlines()
    assert head.split() == ["claim", "stated", "found", "95", "%", "interval", "verdict"]
    assert first.split() == ["A1", "2", "2", "-", "confirmed"]
    assert second.split() == ["A2", "94", "%", "-", "-", "cannot", "be", "checked"]
    text = "\n".join(rest)
    assert "A1: It is so\nConfirmed. 2; it rounds to 2." in text
    assert "Cannot be checked. Not published: logs." in text
    assert f"$ hybridperf claims {path} --only A2 --root {tmp_path}" in text
    assert text.endswith("2 claims: 1 confirmed, 1 cannot be checked")


def test_a_contradicted_claim_ends_with_3_and_one_claim_can_be_chosen(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    path = str(write_claims_file(tmp_path, claim_text(COUNT, "3"), claim_text(NONE, name="A2")))

    done = hybridperf("claims", path, "--json")
    alone = hybridperf("claims", path, "--only", "A2", "--json")

    assert (done.code, alone.code) == (3, 0)
    one, two = json.loads(done.out)["claims"]
    assert (one["verdict"], one["stated"], one["readings"][0]["value"]) == ("contradicted", "3", 2)
    assert json.loads(alone.out)["claims"] == [two]
    assert one["command"] == f"hybridperf claims {path} --only A1"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--only", "A11"), 2, "did you mean A10?"),
        (("nowhere.toml",), 4, "no such file"),
        (("--format", "csv"), 2, "invalid choice"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    hybridperf: Callable[..., Finished],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    path = str(write_claims_file(tmp_path, claim_text(NONE, name="A10")))

    done = hybridperf("claims", path, *arguments)

    assert done.code == code
    assert words in done.sentence


def test_two_files_with_one_id_are_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths.append(str(write_claims_file(tmp_path / name, claim_text(NONE))))

    done = hybridperf("claims", *paths)

    assert done.code == 2
    assert "expected ids that differ from those in" in done.sentence


def test_an_unknown_name_in_a_check_names_the_claim(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    path = write_claims_file(
        tmp_path, claim_text('kind = "expression"\nformula = "2 * milion"', "2")
    )

    done = hybridperf("claims", str(path))

    assert done.code == 2
    assert f"{path}: claim A1: expected " in done.sentence


def test_text_of_a_file_cannot_speak_to_the_terminal(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    text = claim_text(NONE).replace("It is so", "\\u001b[31mred\\u202E")
    path = write_claims_file(tmp_path, text, source=SOURCE.replace("A paper", "\\u001b]0;x"))

    done = hybridperf("claims", str(path))

    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert "\\x1b[31mred\\u202e" in done.out


def test_the_page_is_written_beside_the_board_if_asked_for(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    package = write_result(tmp_path / "submissions")
    result = package.folder.relative_to(tmp_path)
    score = f'kind = "score"\nresult = "{result}"\nmetric = "mean_s"'
    evil = claim_text(NONE, name="A2").replace("It is so", "<script>alert(1)</script>")
    path = str(write_claims_file(tmp_path, claim_text(score, "12.0 s"), evil))
    board = ("report", str(tmp_path / "submissions"), "--out")

    plain = hybridperf(*board, str(tmp_path / "plain"))
    done = hybridperf(*board, str(tmp_path / "out"), "--claims", path, "--root", str(tmp_path))

    assert (plain.code, done.code) == (0, 0)
    assert not (tmp_path / "plain/claims.html").exists()
    page = (tmp_path / "out/claims.html").read_text(encoding="utf-8")
    index = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert 'href="claims.html"' in index
    assert index.replace(' <a href="claims.html">Published claims</a>, checked.', "") == (
        tmp_path / "plain/index.html"
    ).read_text(encoding="utf-8")
    assert '<tr id="claim-A1">' in page
    assert "<b>confirmed</b>" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "default-src &#39;none&#39;" in page
    (anchor,) = {line.split('"')[0] for line in page.split('href="index.html#')[1:]}
    assert f'id="{anchor}"' in index
