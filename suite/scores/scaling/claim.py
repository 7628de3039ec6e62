"""The claim of a scaling efficiency: it stands beside its result and names its base."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from suite.logs.package import NAME, Package
from suite.logs.strict_json import parse_object, read_bounded
from suite.scores.scaling.metrics import METRICS, Metric
from suite.scores.scaling.split import CAUSES, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suite.scores.scaling.scale import Scaled

__all__ = ["CLAIM", "Claim", "Figure", "claim_of", "read_claim", "verify_claim"]

CLAIM: Final = "efficiency.json"  #: scaling.json is what MLPerf's tools leave beside a result
_FORMAT: Final = 1
_CAP_BYTES: Final = 2**20
_LOG_CAP_BYTES: Final = 64 * 2**20
_CLOSE: Final = 1e-6  #: relative; sums differ in their last digits between processors
_MOST: Final = 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    """An efficiency by one metric and its 95 % interval, as claimed."""

    metric: Metric
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a result claims of its scaling."""

    base: Package
    logs: Mapping[str, str]  #: SHA-256 of each log of the base
    devices: tuple[int, int]  #: of the base, and of the result
    kind: str
    cause: str | None
    figures: tuple[Figure, ...]
    unknown: tuple[str, ...]  #: metrics that no figure can be of


def claim_of(scaled: Scaled) -> dict[str, object]:
    """Return the claim of what is rated, as JSON takes it."""
    base = scaled.base.package
    return {
        "format": _FORMAT,
        "base": {"org": base.org, "system": base.system, "logs": dict(log_hashes(base))},
        "devices": [scaled.base.devices.used, scaled.side.devices.used],
        "kind": scaled.kind,
        "cause": scaled.cause,
        "efficiency": {
            each.metric: {"value": each.value, "low": each.ends[0], "high": each.ends[1]}
            for each in scaled.rated
        },
    }


def log_hashes(package: Package) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of every log of a result."""
    for path in sorted(package.folder.glob("result_*.txt")):
        yield path.name, hashlib.sha256(read_bounded(path, _LOG_CAP_BYTES)).hexdigest()


def read_claim(package: Package) -> Claim | None:
    """Return what the result in ``package`` claims; None where it claims nothing.

    Raises:
        ValueError: saying what is wrong with the file.
        OSError: where it cannot be read.
    """
    try:
        facts = parse_object(read_bounded(package.folder / CLAIM, _CAP_BYTES).decode())
    except FileNotFoundError:
        return None
    if facts.get("format") != _FORMAT:
        raise ValueError(f"format {facts.get('format')!r:.40}")
    base, devices, cause = _object(facts, "base"), facts.get("devices"), facts.get("cause")
    names = [base.get(key) for key in ("org", "system")]
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
        raise ValueError(f"a base {names!r:.80}")
    logs = _object(base, "logs")
    if not logs or not all(isinstance(digest, str) for digest in logs.values()):
        raise ValueError("a base without hashes of its logs")
    if not isinstance(devices, list) or [type(each) for each in devices] != [int, int]:
        raise ValueError(f"devices {devices!r:.40}")
    if cause is not None and cause not in (SAMPLES, *CAUSES):
        raise ValueError(f"cause {cause!r:.40}")
    claimed = _object(facts, "efficiency")
    return Claim(
        base=Package(package.root, str(names[0]), str(names[1]), package.benchmark, package.base),
        logs={name: str(digest) for name, digest in logs.items()},
        devices=(devices[0], devices[1]),
        kind=str(facts.get("kind")),
        cause=None if cause is None else str(cause),
        figures=tuple(_figure(name, _object(claimed, name)) for name in METRICS if name in claimed),
        unknown=tuple(name for name in claimed if name not in METRICS),
    )


def verify_claim(claim: Claim, scaled: Scaled) -> Iterator[tuple[str, str]]:
    """Yield what the logs say, and what is claimed instead."""
    devices = (scaled.base.devices.used, scaled.side.devices.used)
    if claim.devices != devices:
        yield (
            f"from {devices[0]} to {devices[1]} devices",
            f"from {claim.devices[0]} to {claim.devices[1]}",
        )
    if claim.kind != scaled.kind:
        yield f"{scaled.kind} scaling", f"{claim.kind!r:.40}"
    if not claim.figures and not claim.unknown:
        yield "a figure by some metric", "none"
    known = {each.metric: each for each in scaled.efficiencies}
    for figure in claim.figures:
        found = known[figure.metric]
        if found.value is None:
            continue
        if not found.rated:
            yield (
                f"no figure by {figure.metric}: {found.standing}, {found.why}",
                f"{figure.value:.4f}",
            )
            continue
        own = (found.value, *found.ends)
        claimed = (figure.value, figure.low, figure.high)
        if not all(_close(*pair) for pair in zip(own, claimed, strict=True)):
            yield f"{figure.metric} {_span(*own)}", _span(*claimed)


def _object(facts: Mapping[str, object], key: str) -> dict[str, Any]:
    value = facts.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} {value!r:.40}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    return value


def _figure(metric: Metric, facts: Mapping[str, object]) -> Figure:
    value, low, high = (_number(metric, facts.get(key)) for key in ("value", "low", "high"))
    if value is None:
        raise ValueError(f"{metric} without a value")
    return Figure(metric, value, low, high)


def _number(metric: Metric, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise ValueError(f"{metric} of {value!r:.40}")
    return float(value)


def _close(own: float | None, claimed: float | None) -> bool:
    if own is None or claimed is None:
        return own is claimed
    return math.isclose(own, claimed, rel_tol=_CLOSE)


def _span(value: float, low: float | None, high: float | None) -> str:
    ends = ["unknown" if end is None else f"{end:.6f}" for end in (low, high)]
    return f"{value:.6f} ({' to '.join(ends)})"
