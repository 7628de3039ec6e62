"""Predict from the kept weights of a sealed run again, on any machine with the task's data."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log.package import NAME, result_names
from hybridperf.log.writer import LogClock
from hybridperf.run.provenance import file_sha256
from hybridperf.run.rescore import Rescoring, rescore
from hybridperf.run.scratch import Scratch
from hybridperf.run.spec import RunSpec

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.package import Package, SealedRun
    from hybridperf.run.predictor_server import PredictorServer
    from hybridperf.run.signals import StopRequest

__all__ = ["kept_weights", "rescore_sealed"]


def kept_weights(package: Package, run: SealedRun, elsewhere: Path | None) -> dict[str, Path]:
    """Return the files of a run's final weights by the names of their parts; empty if none is kept.

    They stand beside the log, or under the same names in the folder ``elsewhere``.

    Raises:
        UserError: exit status 3 if one is missing, or is not the one that the manifest names.
    """
    stated = run.fact("weights_sha256")
    parts = stated if isinstance(stated, dict) else {}
    folder = elsewhere or package.folder
    paths = {str(name): folder / f"weights_{run.number}_{name}" for name in parts}
    if elsewhere is None and not any(path.exists() for path in paths.values()):
        return {}
    for name, path in paths.items():
        regular = NAME.fullmatch(name) and path.is_file() and not path.is_symlink()
        found = file_sha256(path) if regular else "no such file"
        if found != parts[name]:
            expected = f"weights with SHA-256 {parts[name]!s:.12}..."
            remedy = "fetch what was published with the result"
            finding = Finding("rescore.weights", expected, f"{found:.12}", remedy, str(path))
            raise UserError(finding, ExitCode.INVALID)
    return paths


def rescore_sealed(
    package: Package,
    run: SealedRun,
    task: Path,
    trainer: str,
    weights: dict[str, Path],
    server: PredictorServer,
    stop: StopRequest,
) -> Rescoring | None:
    """Predict from ``weights`` of a sealed run of the task file ``task``, and count.

    ``trainer`` is the package of the predictor; in the closed division it is the task's own.
    Returns None if ``stop`` was requested meanwhile.

    Raises:
        UserError: as `hybridperf.run.rescore.rescore`, and exit status 2 if the manifest
            states no plan.
    """
    with contextlib.closing(Scratch()) as scratch:
        spec = RunSpec(
            folder=str(scratch.path),
            attempt=run.number,
            task_path=str(task),
            trainer=trainer,
            overrides={},  # hyperparameters of training change nothing in how a model predicts
            plan=str(run.fact("plan")),
            seed=0,
            org=package.org,
            platform=package.system,
            division="open" if run.fact("division") == "open" else "closed",
            clock=LogClock(),
        )
        spec.parallel_plan()
        shutil.copyfile(package.folder / result_names(run.number)[0], spec.log)
        spec.weights.mkdir(parents=True)
        for name, path in weights.items():
            shutil.copyfile(path, spec.weights / name)
        spec.write()
        return rescore(spec, server, stop)
