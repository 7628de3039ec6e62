"""Projections without a task: of published results, and of full-size models as curves.

What ``hybridperf plan --validate`` and ``hybridperf plan --curves`` execute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.parallel_map import parallel_map
from hybridperf.projection.rounds import Published, project_rounds
from hybridperf.projection.scaling_curves import scaling_curves
from hybridperf.report.build import write_files
from hybridperf.report.judged import found_packages
from hybridperf.report.projected_scaling import projected_scaling_page
from hybridperf.report.published_systems import NotProjected, is_projectable, published_system
from hybridperf.report.round_projections import round_projections_json, round_projections_text
from hybridperf.run.folder import environment_refusal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["validate_on_rounds", "write_projected_curves"]

_PAGE: Final = "projected_scaling.html"


def validate_on_rounds(path: Path, *, as_json: bool, jobs: int) -> ExitCode:
    """Print projected beside published throughput of the rounds of MLPerf below ``path``.

    Raises:
        UserError: exit status 4 if no result below ``path`` can be projected.
    """
    packages = [each for each in found_packages([path]) if is_projectable(each)]
    found = list(parallel_map(published_system, packages, jobs))
    projected = project_rounds(each for each in found if isinstance(each, Published))
    left_out = [each for each in found if isinstance(each, NotProjected)]
    if not projected:
        raise UserError.of(
            "plan.rounds",
            "folders training_results_v<round> with results of BERT or ResNet on two numbers of "
            "devices of one submitter",
            f"{len(packages)} results of these benchmarks" if packages else "none",
            "unpack rounds that MLCommons published",
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        )
    if as_json:
        print_json(round_projections_json(projected, left_out))
    else:
        print_line(round_projections_text(projected, left_out, terminal_width()))
    return ExitCode.OK


def write_projected_curves(folder: Path) -> ExitCode:
    """Write projections of the full-size models on 8 to 4,096 devices to ``folder``.

    Raises:
        UserError: exit status 4 if ``folder`` cannot be written.
    """
    page = projected_scaling_page(scaling_curves())
    try:
        written = write_files([(_PAGE, page)], folder)
    except OSError as error:
        raise environment_refusal(error, folder) from error
    for path in written:
        print_line(str(path))
    return ExitCode.OK
