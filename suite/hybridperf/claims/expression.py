"""Compute a claim by a formula, on constants with their sources and on facts of the suite.

Formulas are those of rulesets: arithmetic, ``sqrt``, ``floor`` and the like, never code. Facts are
tables that a formula indexes by a name, in which ``_`` stands for ``/`` and ``-``:

==========================  =====================================================================
``parameters[task]``        number of parameters of the task's model, as ``parameters[vit_cluster]``
``flops[task]``             FLOPs of training on one sample: three times those of a forward pass
``peak_bf16[system]``       FLOP/s of a device of the catalogue's system, as ``peak_bf16[a100_sxm]``
                            (also ``peak_fp16``, ``peak_tf32`` and ``peak_fp32``)
``memory_bytes[system]``    bytes of its memory
==========================  =====================================================================
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from hybridperf.claims.verdict import ClaimReading, Evidence
from hybridperf.errors import UserError
from hybridperf.projection.systems import known_systems
from hybridperf.projection.units import load_units
from hybridperf.rules.mlperf.constraints import FormulaError, computed, names_in
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.registry import task_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.claims.claim import ExpressionCheck

__all__ = ["evaluate"]

_FORWARD_AND_BACKWARD: Final = 3  #: FLOPs of both passes over those of the forward pass
_PRECISIONS: Final = ("bf16", "fp16", "tf32", "fp32")
_TERA: Final = 1e12


def evaluate(check: ExpressionCheck) -> Evidence:
    """Return what the formula of ``check`` makes in each of its cases, and what else follows.

    Raises:
        UserError: exit status 2 if a text is no formula, has an unknown name, or makes no number.
    """
    cases = check.cases or {"": {}}
    readings = tuple(
        ClaimReading(
            value=_number(check.formula, {**check.constants, **case}),
            conditions={check.varies: name} if name else {},
        )
        for name, case in cases.items()
    )
    notes = [_implied(check, name, formula) for name, formula in check.implies.items()]
    known = {*check.constants, *(name for case in cases.values() for name in case)}
    if unsourced := sorted(known - set(check.sources)):
        notes.append(f"no source is stated for {', '.join(unsourced)}")
    return Evidence(readings, notes=tuple(notes))


def _implied(check: ExpressionCheck, name: str, formula: str) -> str:
    """Return a further figure in words, by case where cases differ."""
    figures = {
        case: f"{_number(formula, {**check.constants, **values}):,.4g}"
        for case, values in (check.cases or {"": {}}).items()
    }
    if len(set(figures.values())) == 1:
        return f"{name}: {next(iter(figures.values()))}"
    return f"{name}: {', '.join(f'{figure} ({case})' for case, figure in figures.items())}"


def _number(formula: str, constants: Mapping[str, float]) -> float:
    values = {**_facts(), **constants}
    try:
        unknown = sorted(names_in(formula) - set(values))
    except FormulaError as error:
        raise UserError.of(
            "claims.formula",
            "arithmetic on constants and facts",
            str(error),
            "write it with + - * / and parentheses",
        ) from error
    if unknown:
        raise UserError.of(
            "claims.formula",
            "names of constants of the check, or of facts of the suite",
            f"{unknown[0]!r:.60} in {formula!r}",
            did_you_mean(unknown[0], values) or "add it to the constants, with its source",
        )
    if (number := computed(formula, values)) is None:
        raise UserError.of(
            "claims.formula",
            "a formula that makes a number",
            repr(formula),
            "divide by no zero, and index tables of facts by names that they hold, as "
            "flops[vit_cluster]",
        )
    return number


@functools.cache
def _facts() -> Mapping[str, object]:
    """Return the facts of the suite by the names that formulas have for them."""
    tasks = {_name(task): load_units(task) for task in task_names()}
    devices = {_name(system.name): system.device for system in known_systems()}
    tables: dict[str, object] = {
        "parameters": {name: units.parameters for name, units in tasks.items()},
        "flops": {
            name: _FORWARD_AND_BACKWARD * units.forward_flops for name, units in tasks.items()
        },
        "memory_bytes": {
            _name(system.name): system.memory_bytes
            for system in known_systems()
            if system.memory_bytes
        },
    }
    for precision in _PRECISIONS:
        tables[f"peak_{precision}"] = {
            name: device.peak_tflops[precision] * _TERA
            for name, device in devices.items()
            if precision in device.peak_tflops
        }
    return {name: name for name in (*tasks, *devices)} | tables


def _name(text: str) -> str:
    """Return the name of a task or a system in formulas."""
    return text.replace("/", "_").replace("-", "_")
