"""Fit a system to measured throughput: the rates of its device and its links.

The logarithm of projected over measured throughput of a result is a function of the logarithms of
the system's parameters, each a factor of the catalogue's value. Gauss-Newton steps minimise the sum
of squares. Each task has a speed factor of its own. Another parameter is fitted where that lowers
the leave-one-out error, its 95 % interval is narrower than a factor of two in either direction and
its value is within a factor of ten of the catalogue's; otherwise the logs do not determine it, and
the catalogue's value is kept. Logs of one plan and one batch size determine the speed factor alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np

from hybridperf.findings import visible
from hybridperf.projection.device import OTHER_TASKS, half_batch
from hybridperf.projection.project import project
from hybridperf.projection.systems import Accuracy, System
from hybridperf.score.statistics import t_quantile
from hybridperf.system.catalog import known_accelerators

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.systems import LinkClass
    from hybridperf.projection.units import UnitTable

    _Logs: TypeAlias = NDArray[np.float64]  # [parameter] or [observation]
    _Rows: TypeAlias = NDArray[np.intp]  # numbers of observations

__all__ = ["Fit", "Observation", "Parameter", "accuracy_sentence", "fit_system", "fit_toml"]

_DIFFERENCE: Final = 1e-3  #: difference of a logarithm from which derivatives are computed
_MOST_STEPS: Final = 30  #: bound on the steps of Gauss-Newton
_SETTLED: Final = 1e-6  #: change of a logarithm below which a fit has converged
_LONGEST_STEP: Final = 1.5  #: bound on the change of a logarithm in one step
_WIDEST: Final = math.log(2)  #: half of the widest interval of a determined parameter
_FARTHEST: Final = math.log(10)  #: bound on the logarithm of a factor, but for speed factors
_LEAST_GAIN: Final = 0.95  #: leave-one-out error with a parameter over the error without it
_MOST_WIDTH: Final = 100.0  #: bound on half the width of an interval of a logarithm
_PROBABILITY: Final = 0.975  #: probability of a value below the upper bound of a 95 % interval
_RANK: Final = 1e-4  #: singular value of derivatives below which they are dependent


@dataclass(frozen=True, slots=True)
class Observation:
    """A result: its plan and its measured throughput."""

    name: str  #: name of the result, safe to print
    units: UnitTable
    plan: ParallelPlan
    global_batch_size: int
    devices_per_node: int
    samples_per_s: float  #: measured steady throughput
    clips: bool = False  #: whether gradients are clipped


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a system, fitted or kept from the catalogue."""

    name: str
    unit: str  #: "" for a factor of the catalogue's rates
    catalogue: float
    value: float
    is_determined: bool  #: whether the logs determine it; if not, the catalogue's value is kept
    factor: float | None = None
    #: factor by which the bounds of the 95 % interval differ from the value; None if unknown

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval; None if it is unknown."""
        return None if self.factor is None else (self.value / self.factor, self.value * self.factor)


@dataclass(frozen=True, slots=True)
class Fit:
    """A system that is fitted to results, and the error of the fit."""

    base: System
    system: System
    tasks: tuple[str, ...]
    speeds: tuple[Parameter, ...]  #: speed factors, by task
    overhead: Parameter
    half_batches: tuple[Parameter, ...]
    #: half batches by task and precision, which follow from speed factors and overhead
    links: dict[tuple[str, str], Parameter]
    #: bandwidths and latencies by fields of `System` and `LinkClass`
    observations: tuple[Observation, ...]
    errors: tuple[float, ...]
    #: leave-one-out errors by observation: projected over measured throughput, less 1, where the
    #: system is fitted to all other observations; empty for a single one

    @property
    def accuracy(self) -> Accuracy | None:
        """Return the leave-one-out errors; None for a single observation."""
        if not self.errors:
            return None
        errors = sorted(map(abs, self.errors))
        return Accuracy(
            of="fit",
            median=median(errors),
            nine_in_ten=errors[math.ceil(0.9 * len(errors)) - 1],
            worst=errors[-1],
            results=len(errors),
            source="leave-one-out, of plans and batches as in the logs",
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return all parameters."""
        return (*self.speeds, self.overhead, *self.half_batches, *self.links.values())


_Scaled: TypeAlias = Callable[[System, float], System]  # system and factor -> scaled system


def _speed_of(task: str) -> _Scaled:
    def scaled(system: System, factor: float) -> System:
        speeds = {**system.rates.speeds, task: system.rates.speed(task) * factor}
        return replace(system, rates=replace(system.rates, speeds=speeds))

    return scaled


def _overhead(system: System, factor: float) -> System:
    layer = system.rates.layer
    scaled = {"half_us": factor * layer.half_us, "single_us": factor * layer.single_us}
    layer = msgspec.structs.replace(layer, **scaled)
    return replace(system, rates=replace(system.rates, layer=layer))


def _link_of(place: str, name: str) -> _Scaled:
    def scaled(system: System, factor: float) -> System:
        link = getattr(system, place)
        link = msgspec.structs.replace(link, **{name: factor * getattr(link, name)})
        return replace(system, **{place: link})

    return scaled


#: fields of `System` and `LinkClass` -> words and unit
_LINK_FIELDS: Final = {
    ("between", "achieved_gb_per_s"): ("bandwidth of an adapter between nodes", "GB/s"),
    ("between", "latency_us"): ("latency between nodes", "us"),
    ("inside", "achieved_gb_per_s"): ("bandwidth inside a node", "GB/s"),
    ("inside", "latency_us"): ("latency inside a node", "us"),
}


def fit_system(base: System, observations: Sequence[Observation]) -> Fit:
    """Return ``base`` with the parameters that ``observations``, at least one, determine.

    Raises:
        UserError: exit status 2 if the device has no peak in the precision of a plan.
    """
    model = _Model(base, tuple(observations))
    rows = np.arange(len(observations))
    logs, chosen = model.fit(rows)
    spread = model.spread(logs, chosen, rows)
    count = len(model.tasks)
    overhead_us = (base.rates.layer.half_us, base.rates.layer.single_us)
    is_half = any(each.plan.precision in {"bf16", "fp16"} for each in observations)

    def parameter(words: str, unit: str, catalogue: float, *numbers: int) -> Parameter:
        """Return the parameter whose logarithm is the sum of the logarithms of ``numbers``."""
        known = set(numbers) <= set(chosen)
        value = catalogue * math.exp(sum(float(logs[number]) for number in numbers))
        if not known or spread is None:
            return Parameter(words, unit, catalogue, value, known)
        weights = np.array([float(number in numbers) for number in chosen])
        width = min(math.sqrt(float(weights @ spread @ weights)), _MOST_WIDTH)
        return Parameter(words, unit, catalogue, value, known, math.exp(width))

    # A half batch is the overhead multiplied by the samples/s, so that the logarithms add up.
    pairs = {(each.units.task, each.plan.precision): each.units for each in observations}
    return Fit(
        base=base,
        system=model.system(logs),
        tasks=tuple(model.tasks),
        speeds=tuple(
            parameter(f"speed factor of {task}", "", base.rates.speed(task), number)
            for number, task in enumerate(model.tasks)
        ),
        overhead=parameter("launch overhead of a layer", "us", overhead_us[not is_half], count),
        half_batches=tuple(
            parameter(
                f"half batch of {task}, {precision}",
                "samples",
                half_batch(base.timing(units, precision)),
                count,
                model.tasks.index(task),
            )
            for (task, precision), units in sorted(pairs.items(), key=lambda pair: pair[0])
        ),
        links={
            place: parameter(
                *words, float(getattr(getattr(base, place[0]), place[1])), count + 1 + number
            )
            for number, (place, words) in enumerate(_LINK_FIELDS.items())
        },
        observations=tuple(observations),
        errors=tuple(model.left_out_error(row, logs, chosen) for row in rows.tolist())
        if len(rows) > 1
        else (),
    )


class _Model:
    """Logarithms of projected over measured throughput by the logarithms of parameters.

    Parameters are numbered: speed factors by task, the overhead of a layer, and `_LINK_FIELDS`.
    """

    def __init__(self, base: System, observations: tuple[Observation, ...]) -> None:
        self._base, self._observations = base, observations
        self.tasks = sorted({each.units.task for each in observations})
        links = (_link_of(*place) for place in _LINK_FIELDS)
        self._scaled = (*map(_speed_of, self.tasks), _overhead, *links)
        self._known: dict[tuple[int, bytes], float] = {}

    def system(self, logs: _Logs) -> System:
        """Return the system at ``logs`` [parameter]; other tasks get the mean of the speeds."""
        system = self._base
        for scaled, log in zip(self._scaled, logs.tolist(), strict=True):
            system = scaled(system, math.exp(log)) if log else system
        mean = math.exp(fmean(logs[: len(self.tasks)].tolist()))
        return _speed_of(OTHER_TASKS)(system, mean)

    def fit(self, rows: _Rows) -> tuple[_Logs, tuple[int, ...]]:
        """Return the logarithms [parameter], and the numbers of those that ``rows`` determine."""
        tasks = sorted({self.tasks.index(self._observations[row].units.task) for row in rows})
        chosen = tuple(tasks)
        logs = self._solved(np.zeros(len(self._scaled)), chosen, rows)
        error, others = self._hat_error(logs, chosen, rows), set(range(len(self.tasks), len(logs)))
        while True:
            better = []
            for number in sorted(others - set(chosen)):
                more = (*chosen, number)
                moved = self._solved(logs, more, rows)
                if self._determines(moved, more, rows):
                    better.append((self._hat_error(moved, more, rows), moved, more))
            best = min(better, key=lambda each: each[0], default=None)
            if best is None or best[0] > _LEAST_GAIN * error:
                break
            error, logs, chosen = best
        for number in set(range(len(self.tasks))) - set(tasks):  # tasks of which no result is left
            logs[number] = fmean(logs[tasks].tolist())
        return logs, chosen

    def spread(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> _Logs | None:
        """Return the covariance of the ``chosen`` logarithms times the squared quantile of t.

        Shape [chosen, chosen]; roots of the diagonal are half widths of 95 % intervals. None if
        there are too few results, or the derivatives are dependent.
        """
        degrees, slopes = len(rows) - len(chosen), self._slopes(logs, chosen, rows)
        if degrees < 1 or np.linalg.matrix_rank(slopes, tol=_RANK) < len(chosen):
            return None
        variance = float((self._residuals(logs, rows) ** 2).sum()) / degrees
        covariance = variance * np.linalg.inv(slopes.T @ slopes)
        return np.asarray(covariance * t_quantile(_PROBABILITY, degrees) ** 2)

    def left_out_error(self, row: int, logs: _Logs, chosen: Sequence[int]) -> float:
        """Return the error of an observation that is projected by a fit to all others.

        Where the others determine the same parameters, a Gauss-Newton step from ``logs`` fits them.
        """
        rows = np.array([each for each in range(len(self._observations)) if each != row])
        moved = logs.copy()
        if self._determines(logs, chosen, rows):
            moved[list(chosen)] += self._step(logs, chosen, rows)
        else:
            moved, _ = self.fit(rows)
        return math.expm1(self._residual(row, moved))

    def _determines(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> bool:
        """Return whether ``rows`` determine the ``chosen`` parameters, at ``logs``."""
        spread = self.spread(logs, chosen, rows)
        if spread is None or np.sqrt(np.diag(spread)).max() > _WIDEST:
            return False
        return bool(np.abs(logs[len(self.tasks) :]).max() <= _FARTHEST)

    def _residual(self, row: int, logs: _Logs) -> float:
        key = (row, logs.tobytes())
        if key not in self._known:
            one, system = self._observations[row], self.system(logs)
            projection = project(
                one.plan,
                one.units,
                system.timing(one.units, one.plan.precision),
                replace(system.network, devices_per_node=one.devices_per_node),
                global_batch_size=one.global_batch_size,
                optimizer="sgd",  # counts in memory alone
                clips=one.clips,
            )
            self._known[key] = math.log(projection.samples_per_s / one.samples_per_s)
        return self._known[key]

    def _residuals(self, logs: _Logs, rows: _Rows) -> _Logs:
        return np.array([self._residual(row, logs) for row in rows.tolist()])

    def _slopes(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> _Logs:
        """Return the derivatives [row, chosen] of the residuals by the logarithms."""
        columns, at = [], self._residuals(logs, rows)
        for number in chosen:
            moved = logs.copy()
            moved[number] += _DIFFERENCE
            columns.append((self._residuals(moved, rows) - at) / _DIFFERENCE)
        return np.stack(columns, axis=1)

    def _step(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> _Logs:
        """Return a Gauss-Newton step [chosen]."""
        slopes = self._slopes(logs, chosen, rows)
        step, *_ = np.linalg.lstsq(slopes, -self._residuals(logs, rows), rcond=_RANK)
        longest = float(np.abs(step).max())
        return np.asarray(step * min(1.0, _LONGEST_STEP / longest) if longest else step)

    def _solved(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> _Logs:
        """Return ``logs`` with the ``chosen`` ones where the sum of squares is least."""
        squares = float((self._residuals(logs, rows) ** 2).sum())
        for _ in range(_MOST_STEPS):
            step = self._step(logs, chosen, rows)
            while np.abs(step).max() > _SETTLED:
                moved = logs.copy()
                moved[list(chosen)] += step
                fewer = float((self._residuals(moved, rows) ** 2).sum())
                if fewer < squares:
                    logs, squares = moved, fewer
                    break
                step = step / 4
            else:
                return logs
        return logs

    def _hat_error(self, logs: _Logs, chosen: Sequence[int], rows: _Rows) -> float:
        """Return the root mean square of the leave-one-out residuals of a linear model."""
        slopes = self._slopes(logs, chosen, rows)
        own = (slopes * np.linalg.pinv(slopes, rcond=_RANK).T).sum(axis=1)
        left_out = self._residuals(logs, rows) / np.maximum(1 - own, _RANK)
        return float(np.sqrt((left_out**2).mean()))


def fit_toml(fit: Fit, name: str) -> str:
    """Return the fitted system as a system file, under ``name``, with intervals as comments."""
    system, device, rates = fit.system, fit.system.device, fit.system.rates
    count = len(fit.observations)
    fitted = f"fitted to {count} result{'s' * (count > 1)}"
    links: dict[str, LinkClass] = {"inside": system.inside, "between": system.between}
    link_lines = list[str]()
    for place, link in links.items():
        own = {field: each for (at, field), each in fit.links.items() if at == place}
        if any(each.is_determined for each in own.values()):
            peak = max(link.peak_gb_per_s, link.achieved_gb_per_s)
            words = {"name": f"{name} {place}", "source": f"{fitted}, from {link.name}"}
            links[place] = msgspec.structs.replace(link, peak_gb_per_s=peak, **words)
        comments = {field: _comment(each) for field, each in own.items()}
        link_lines += _table("[[link]]", msgspec.structs.asdict(links[place]), comments)
    lines = [
        f"# A system {fitted} by 'hybridperf fit', from {fit.base.name}.",
        f"# {accuracy_sentence(fit.accuracy)}",
        "",
        *_table(
            "[[system]]",
            {
                "name": name,
                "device": device.name,
                "devices_per_node": system.devices_per_node,
                "inside": links["inside"].name,
                "between": links["between"].name,
                "adapters_per_node": system.adapters_per_node,
                "library": system.library,
            },
        ),
        *link_lines,
    ]
    if device not in known_accelerators():
        stated = msgspec.structs.asdict(device).items()
        lines += _table("[[accelerator]]", {key: each for key, each in stated if each is not None})
    lines += _table("[achieved]", msgspec.structs.asdict(rates.shares))
    intervals = dict(zip(fit.tasks, fit.speeds, strict=True))
    for task, factor in rates.speeds.items():
        comment = _comment(intervals[task]) if task in intervals else ""
        source = fitted if task in intervals else "mean of the fitted factors"
        row = {"task": task, "factor": factor, "source": source}
        lines += _table("[[speed]]", row, {"factor": comment})
    layer = {**msgspec.structs.asdict(rates.layer), "devices": [device.name]}
    comment = _comment(fit.overhead)
    lines += _table("[[layer]]", layer, {"half_us": comment, "single_us": comment})
    if fit.accuracy is not None:
        lines += _table("[[accuracy]]", msgspec.structs.asdict(fit.accuracy))
    return "\n".join(lines)


_KEPT: Final = "not determined by these logs: catalogue value kept"


def accuracy_sentence(accuracy: Accuracy | None) -> str:
    """Return the leave-one-out error as a sentence."""
    if accuracy is None:
        return "Leave-one-out error of throughput: unknown, since there is one result."
    return (
        f"Leave-one-out error of throughput: median {accuracy.median:.1%}, worst "
        f"{accuracy.worst:.1%}, of {accuracy.results} results."
    )


def _comment(parameter: Parameter) -> str:
    if not parameter.is_determined:
        return _KEPT
    interval = parameter.interval
    if interval is None:
        return "95 % interval unknown: too few results"
    return f"95 % interval {interval[0]:.3g} to {interval[1]:.3g}"


def _table(
    head: str, values: Mapping[str, object], comments: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines of a table, with ``comments`` by key and an empty line after it."""
    lines = [head]
    for key, value in values.items():
        comment = f"  # {comments[key]}" if comments and comments.get(key) else ""
        lines.append(f"{key} = {_toml(value)}{comment}")
    return [*lines, ""]


def _toml(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(visible(value), ensure_ascii=False) if isinstance(value, str) else str(value)
