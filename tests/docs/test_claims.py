"""docs/claims.md: its commands work as shown, and its file of claims is one."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from hybridperf.claims.claim import _KINDS
from hybridperf.cli import main
from tests.docs.conftest import ROOT, blocks

if TYPE_CHECKING:
    import pytest


def test_the_example_is_checked_by_the_command_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (command,) = "".join(blocks("claims", "sh")).splitlines()

    status = main([*shlex.split(command)[1:], "--json"])

    verdicts = {
        claim["id"]: claim["verdict"] for claim in json.loads(capsys.readouterr().out)["claims"]
    }
    assert verdicts["parameters"] == "confirmed"
    assert verdicts["cluster"] == "cannot be checked"
    assert "cannot be checked" not in {
        verdicts[name] for name in ("replicas-time", "replicas-samples", "first")
    }
    assert status == (3 if "contradicted" in verdicts.values() else 0)


def test_the_page_has_a_row_for_every_kind() -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")

    assert [kind for kind in _KINDS if f"\n| `{kind}` | " not in text] == []
