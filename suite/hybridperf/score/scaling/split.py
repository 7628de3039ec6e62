"""Factor scaling efficiency into samples to target and device time per sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.run_score import known_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.score.scaling.side import ScalingRun, Side

__all__ = ["CAUSES", "SAMPLES", "Split", "split_efficiency"]

SAMPLES: Final = "samples"
#: causes of device time; the last three are the coarser ones of less detailed logs
CAUSES: Final = (
    *("computation", "exposed-communication", "bubble", "imbalance", "input", "evaluation"),
    *("rest", "training", "steady-training", "start-up"),
)


@dataclass(frozen=True, slots=True)
class Split:
    """Efficiency by time to train as ``samples * pace``, where ``pace = 1 - sum of losses``.

    ``samples`` is the base's mean samples to target over the result's; ``pace`` is the base's mean
    device-seconds per sample over the result's. Both are over the scored runs.
    """

    samples: float
    pace: float
    losses: tuple[tuple[str, float], ...]  #: by cause, share of the result's time; negative: gain

    @property
    def total(self) -> float:
        """Return the efficiency by time to train."""
        return self.samples * self.pace

    def without(self, cause: str, *, samples: bool) -> float:
        """Return the efficiency with the effect of ``cause`` removed.

        It is the efficiency by time to train if ``samples`` is true, else that by throughput.
        """
        factor = self.samples if samples and cause != SAMPLES else 1.0
        return factor * (self.pace + dict(self.losses).get(cause, 0.0))

    @property
    def gains(self) -> list[str]:
        """Return the causes by which the result improves on its base, the largest first."""
        gains = [(-loss, cause) for cause, loss in self.losses if loss < 0]
        if self.samples > 1:
            gains.append((self.samples - 1, SAMPLES))
        return [cause for _, cause in sorted(gains, reverse=True)]


def split_efficiency(base: Side, side: Side) -> Split | None:
    """Split the efficiency of ``side``; None if the time or samples of a scored run are unknown."""
    costs = [_device_seconds_per_sample(each) for each in (base, side)]
    samples = [_samples(each.counting) for each in (base, side)]
    if costs[0] is None or costs[1] is None or not all(samples):
        return None
    parts = [_parts(each.counting) for each in (base, side)]
    losses: list[tuple[str, float]] = []
    if parts[0] is not None and parts[1] is not None and set(parts[0]) == set(parts[1]):
        losses = [
            (cause, (parts[1][cause] - parts[0][cause]) / costs[1])
            for cause in CAUSES
            if cause in parts[0]
        ]
    return Split(samples[0] / samples[1], costs[0] / costs[1], tuple(losses))


def _device_seconds_per_sample(side: Side) -> float | None:
    runs = side.counting
    time_s = math.fsum(run.time_s for run in runs)
    samples = _samples(runs)
    if not samples or not 0 < time_s < math.inf:
        return None
    return side.devices.used * time_s / (samples * len(runs))


def _samples(runs: Sequence[ScalingRun]) -> float:
    return known_mean(run.samples for run in runs) or 0.0


def _parts(runs: Sequence[ScalingRun]) -> dict[str, float] | None:
    """Return device-seconds per sample by cause; None if a run does not record them."""
    known = [run.device_seconds for run in runs if run.device_seconds is not None]
    samples = math.fsum(run.samples for run in runs)
    if len(known) < len(runs) or len({frozenset(parts) for parts in known}) != 1:
        return None
    return {cause: math.fsum(parts[cause] for parts in known) / samples for cause in known[0]}
