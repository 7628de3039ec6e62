"""Write, read and verify scaling claims: files next to a result that name its base."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hybridperf.log.package import NAME, Package
from hybridperf.score.scaling.speed import METRICS, Metric
from hybridperf.score.scaling.split import CAUSES, SAMPLES
from hybridperf.untrusted import (
    DEVICES_CAP,
    LOG_CAP_BYTES,
    RATIO_CAP,
    number,
    read_bounded,
    read_object,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf.score.scaling.scale import Scaled

__all__ = ["CLAIM", "Claim", "Figure", "claim_of", "read_claim", "verify_claim"]

CLAIM: Final = "efficiency.json"  #: not scaling.json, which MLPerf's tools write
_FORMAT: Final = 1
_CLOSE: Final = 1e-6  #: relative tolerance; sums differ in their last digits between processors


@dataclass(frozen=True, slots=True)
class Figure:
    """A claimed efficiency by one metric, with its 95 % confidence interval."""

    metric: Metric
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """The scaling claim of a result."""

    base: Package
    logs: Mapping[str, str]  #: SHA-256 of each log of the base, by file name
    devices: tuple[int, int]  #: used by the base and by the result
    kind: str
    cause: str | None
    figures: tuple[Figure, ...]
    unknown: tuple[str, ...]  #: claimed metrics that do not exist


def claim_of(scaled: Scaled) -> dict[str, object]:
    """Return the claim of all rated efficiencies as a JSON-serialisable dictionary."""
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
    """Yield the file name and SHA-256 of every log of a result.

    Raises:
        OSError, ValueError: as `read_bounded`.
    """
    for path in sorted(package.folder.glob("result_*.txt")):
        yield path.name, hashlib.sha256(read_bounded(path, LOG_CAP_BYTES)).hexdigest()


def read_claim(package: Package) -> Claim | None:
    """Read the scaling claim of the result in ``package``; None if there is none.

    Raises:
        ValueError: if the file is malformed.
        OSError: if the file cannot be read.
    """
    try:
        table = read_object(package.folder / CLAIM)
    except FileNotFoundError:
        return None
    if table.get("format") != _FORMAT:
        raise ValueError(f"format {table.get('format')!r:.40}")
    base, devices, cause = _object(table, "base"), table.get("devices"), table.get("cause")
    names = [base.get(key) for key in ("org", "system")]
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
        raise ValueError(f"a base {names!r:.80}")
    logs = _object(base, "logs")
    if not logs or not all(isinstance(digest, str) for digest in logs.values()):
        raise ValueError("a base without hashes of its logs")
    counts = [whole(each, 1, DEVICES_CAP) for each in devices] if isinstance(devices, list) else []
    known = [count for count in counts if count is not None]
    if not len(known) == len(counts) == 2:
        raise ValueError(f"devices {devices!r:.40}")
    if cause is not None and cause not in (SAMPLES, *CAUSES):
        raise ValueError(f"cause {cause!r:.40}")
    claimed = _object(table, "efficiency")
    return Claim(
        base=Package(package.root, str(names[0]), str(names[1]), package.benchmark, package.base),
        logs={name: str(digest) for name, digest in logs.items()},
        devices=(known[0], known[1]),
        kind=str(table.get("kind")),
        cause=None if cause is None else str(cause),
        figures=tuple(_figure(name, _object(claimed, name)) for name in METRICS if name in claimed),
        unknown=tuple(name for name in claimed if name not in METRICS),
    )


def verify_claim(claim: Claim, scaled: Scaled) -> Iterator[tuple[str, str]]:
    """Yield (computed from the logs, claimed) for each difference between the two."""
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


def _object(table: Mapping[str, object], key: str) -> dict[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} {value!r:.40}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    return value


def _figure(metric: Metric, table: Mapping[str, object]) -> Figure:
    value, low, high = (_number(metric, table.get(key)) for key in ("value", "low", "high"))
    if value is None:
        raise ValueError(f"{metric} without a value")
    return Figure(metric, value, low, high)


def _number(metric: Metric, value: object) -> float | None:
    if value is None:
        return None
    if (found := number(value, 0, RATIO_CAP)) is None:
        raise ValueError(f"{metric} of {value!r:.40}")
    return float(found)


def _close(own: float | None, claimed: float | None) -> bool:
    if own is None or claimed is None:
        return own is claimed
    return math.isclose(own, claimed, rel_tol=_CLOSE)


def _span(value: float, low: float | None, high: float | None) -> str:
    ends = ["unknown" if end is None else f"{end:.6f}" for end in (low, high)]
    return f"{value:.6f} ({' to '.join(ends)})"
