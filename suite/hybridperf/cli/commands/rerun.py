"""``hybridperf rerun``: reproduce a published result, and attest whether it is confirmed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.commands.rescore import task_of
from hybridperf.cli.commands.run import make_runs
from hybridperf.cli.options import add_data_dir, whole_number
from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_results, only_result
from hybridperf.plan import ParallelPlan
from hybridperf.report.judgement import judged_entries
from hybridperf.rules.evidence import RERUN, attestation_file, sign_file
from hybridperf.rules.verdict import word_of
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.run.provenance import code_facts
from hybridperf.run.request import RunRequest
from hybridperf.score.rerun import attest
from hybridperf.score.validity import Judgement
from hybridperf.tasks.data.samples import export_data_folder
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.registry import in_suite, read_task

if TYPE_CHECKING:
    import argparse

    from hybridperf.log.package import Result

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf rerun submissions/acme/results/laptop/resnet-laptop --org ours --out again
hybridperf rerun submissions/acme/results/laptop/resnet-laptop --org ours --key ~/.ssh/id_ed25519"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf rerun``."""
    parser.add_argument("path", type=Path, help="folder of the result to run again")
    parser.add_argument("--org", required=True, help="organisation that runs it again")
    parser.add_argument(
        "--runs", type=whole_number, help="completed runs to make (default: the task's)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reruns"), help="folder for the runs (default: reruns)"
    )
    parser.add_argument("--key", type=Path, help="SSH key to sign the statement with")
    parser.add_argument(
        "--trainer",
        metavar="PACKAGE",
        help="trainer of the result, where it is not the task's: it runs with your permissions",
    )
    parser.add_argument(
        "--initial",
        type=Path,
        metavar="FILE",
        help="weights that the result began from, where they are not the task's",
    )
    add_data_dir(parser)


def execute(options: argparse.Namespace) -> ExitCode:
    """Make the runs, and write the statement into the folder of the result; 1 if they differ."""
    export_data_folder(options.data_dir)
    package = only_result(find_results(options.path), options.path, "rerun.path")
    (original,) = judged_entries([package])
    request = _request(options, original.result)
    _require_same_code(original.result, request)
    _require_same_weights(original.result, request)
    (again,) = judged_entries([make_runs(request, quiet=False)])
    for finding in again.errors:
        if word_of(finding) != Judgement.PROVISIONAL:
            raise UserError(finding, ExitCode.INVALID)
    found = attest((original.result, original.official), (again.result, again.official))
    path = attestation_file(package, options.org)
    write_atomically(path, canonical_json(found.as_json()))
    print_line(str(path))
    if options.key is not None:
        print_line(str(sign_file(path, options.key, RERUN)))
    problem = found.problem
    print_line(f"The re-run does not confirm the result: {problem}." if problem else "Confirmed.")
    return ExitCode.MISSED if problem else ExitCode.OK


def _request(options: argparse.Namespace, original: Result) -> RunRequest:
    """Return the request for the runs that the result's first manifest describes."""
    run = original.runs[0]
    path = task_of(original)
    task, overrides = read_task(path), run.fact("overrides")
    known = hyperparameters(task)
    stated = overrides if isinstance(overrides, dict) else {}
    if not in_suite(path) and options.trainer is None:
        raise UserError.of(
            "rerun.trainer",
            "the trainer of a user's own task, by name",
            "none",
            "name it with --trainer, if you trust it: it runs with your permissions",
        )
    return RunRequest(
        task_path=path,
        plan=ParallelPlan.parse(str(run.fact("plan"))),
        runs=options.runs or task.runs.count,
        out=options.out,
        org=options.org,
        trainer=options.trainer,
        division="open" if run.fact("division") == "open" else "closed",
        overrides=tuple((key, value) for key, value in stated.items() if key in known),
        initial=options.initial,
    )


def _require_same_weights(original: Result, request: RunRequest) -> None:
    """Check that runs of ``request`` begin from the weights that the result began from.

    Raises:
        UserError: exit status 2 if they do not.
    """
    stated, found = original.runs[0].fact("initial", "sha256"), request.initial_weights()
    if stated != (found and found.sha256):
        raise UserError.of(
            "rerun.initial",
            f"weights with SHA-256 {stated!s:.12}" if stated else "random weights",
            f"{found.sha256:.12}" if found else "none",
            "name the file that the result began from with --initial",
            path=original.package.name,
        )


def _require_same_code(original: Result, request: RunRequest) -> None:
    """Check that the harness and trainer here made the result.

    Raises:
        UserError: exit status 3 if they are not.
    """
    run, own = original.runs[0], code_facts(request.launched)
    for fact in ("trainer", "suite_sha256", "trainer_sha256"):
        if run.fact("code", fact) != own[fact]:
            commit = run.fact("code", "commit")
            raise UserError.of(
                "rerun.code",
                f"{fact} {run.fact('code', fact)!s:.12}, as the result names it",
                f"{own[fact]!s:.12}",
                f"check out commit {commit!s:.50} of the suite, and of the trainer, and try again",
                path=original.package.name,
                exit_code=ExitCode.INVALID,
            )
