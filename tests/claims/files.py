"""Files of claims, made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.claims.claim import read_claims

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.claims.claim import Claim

SOURCE = '[source]\ntitle = "A paper"\nurl = "https://example.org/paper"\n'


def claim_text(check: str, value: str = "94 %", name: str = "A1") -> str:
    """Return a table [[claim]] with the lines ``check`` as its check."""
    return (
        f'[[claim]]\nid = "{name}"\nstatement = "It is so"\nwhere = "table 1"\n'
        f'value = "{value}"\n[claim.check]\n{check}\n'
    )


def write_claims_file(folder: Path, *claims: str, source: str = SOURCE) -> Path:
    path = folder / "claims.toml"
    path.write_text("\n".join([source, *claims]), encoding="utf-8")
    return path


def one_claim(folder: Path, check: str, value: str = "94 %") -> Claim:
    (claim,) = read_claims(write_claims_file(folder, claim_text(check, value)))
    return claim
