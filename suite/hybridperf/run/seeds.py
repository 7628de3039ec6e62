"""The seeds of a result, all fixed before its first run by a secret, and their log entries.

The secret stays in a hidden file of the result's folder.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

from hybridperf.log.chain import GENESIS
from hybridperf.rules.evidence import COMMITTED_SEEDS, commitment_of, is_link, link_at, seed_of
from hybridperf.run.files import canonical_json
from hybridperf.untrusted import read_object, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hybridperf.log.package import Package, SealedRun

__all__ = ["SECRET_FILE", "draw_seed"]

SECRET_FILE: Final = ".seeds.json"  # noqa: S105 - no password


def draw_seed(
    package: Package, runs: Sequence[SealedRun], completed: Sequence[SealedRun]
) -> tuple[int, dict[str, object]]:
    """Return the seed of the next attempt, and the value of the first entry of its log.

    An attempt that did not complete passes its seed on, so that ending it draws no new seed.
    """
    secret = _secret(package.folder / SECRET_FILE)
    position = 1 + len(completed) % COMMITTED_SEEDS
    facts: dict[str, object] = {
        "number": runs[-1].number + 1 if runs else 0,
        "previous": (runs[-1].log.last_hash or GENESIS) if runs else GENESIS,
        "seeds": commitment_of(secret),
    }
    link = link_at(secret, position)
    used = {run.fact("seed") for run in completed}
    passed_on = (whole(run.fact("seed"), 0) for run in runs)
    seed = next((each for each in passed_on if each is not None and each not in used), None)
    if seed is not None and seed != seed_of(link):  # the secret of that attempt was not kept
        return seed, facts
    return seed_of(link), facts | {"position": position, "link": link}


def _secret(path: Path) -> str:
    """Read the secret of a result, or draw it."""
    try:
        secret = read_object(path).get("secret")
    except (OSError, ValueError):
        secret = None
    if isinstance(secret, str) and is_link(secret):
        return secret
    drawn = secrets.token_hex(32)
    path.unlink(missing_ok=True)
    # No one else may read it; a half-written one is drawn again.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(canonical_json({"secret": drawn}))
        file.flush()
        os.fsync(file.fileno())
    return drawn
