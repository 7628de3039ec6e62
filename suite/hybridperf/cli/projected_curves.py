"""Write projected scaling as a page: what ``hybridperf plan --curves`` executes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode
from hybridperf.projection.scaling_curves import scaling_curves
from hybridperf.report.build import write_files
from hybridperf.report.projected_scaling import projected_scaling_page
from hybridperf.run.folder import environment_refusal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_projected_curves"]

_PAGE: Final = "projected_scaling.html"


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
