"""Project the published results of MLPerf's rounds, and print the errors.

``python -m studies.rounds ROUNDS`` projects each result of BERT and ResNet below the folder from
the smallest system of its submitter, device and round.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hybridperf.cli.options import add_jobs
from hybridperf.cli.printing import print_line, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.parallel_map import parallel_map
from hybridperf.report.judgement import found_packages
from studies.rounds.project import Published, project_rounds
from studies.rounds.published import NotProjected, is_projectable, published_system
from studies.rounds.tables import round_projections_text


def main() -> ExitCode:
    """Print projected and published throughput of the rounds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=Path, help="folder with folders training_results_v<round>")
    add_jobs(parser)
    options = parser.parse_args()
    packages = [each for each in found_packages([options.rounds]) if is_projectable(each)]
    found = list(parallel_map(published_system, packages, options.jobs))
    projected = project_rounds(each for each in found if isinstance(each, Published))
    left_out = [each for each in found if isinstance(each, NotProjected)]
    if not projected:
        print_line(f"{len(packages)} results of BERT or ResNet, none of a second number of devices")
        return ExitCode.ENVIRONMENT
    print_line(round_projections_text(projected, left_out, terminal_width()))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
