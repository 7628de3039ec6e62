"""All runs of a result are of one system and one configuration: refused before they are mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.runs.ending import Outcome
from suite.runs.folder import sealed_runs
from suite.runs.provenance import code_hashes
from suite.tasks.data import check_data
from suite.tasks.registry import is_of_suite

if TYPE_CHECKING:
    from suite.logs.package import Package, SealedRun
    from suite.runs.order import Order
    from suite.tasks.task import Task

__all__ = ["configuration", "require_same_configuration", "settle_system", "settle_task"]


def settle_system(package: Package, description: dict[str, object], order: Order) -> None:
    """Describe the system, or make sure that it is still the one described.

    Raises:
        Refusal: exit status 2 where it is another.
    """
    entry = {"submitter": order.org, "division": order.division, "status": "onprem"}
    content = canonical_json(description | entry | {"system_name": package.system})
    if not package.system_file.exists():
        write_atomically(package.system_file, content)
    elif package.system_file.read_bytes() != content:
        finding = Finding(
            "run.system",
            "the system that the earlier runs of this result ran on",
            "other hardware or software",
            "choose a new entry with --system NAME, or another folder with --out",
            path=str(package.system_file),
        )
        raise Refusal(finding, ExitCode.USAGE)


def settle_task(package: Package, order: Order, task: Task) -> str:
    """Return where runs find the task's file: a user's own stands beside their logs.

    So whoever gets the result can judge it, and the user may go on writing.

    Raises:
        Refusal: as `require_same_configuration`.
    """
    if is_of_suite(order.task_path):
        return str(order.task_path.absolute())
    require_same_configuration(sealed_runs(package), order, task)
    write_atomically(package.task_file, order.task_path.read_bytes())
    return f"../{package.task_file.name}"


def configuration(order: Order, task: Task) -> dict[str, object]:
    """Return what all runs of ``order`` have in common, by its name in their manifests."""
    return {
        "plan": str(order.plan),
        "division": order.division,
        "overrides": dict(order.overrides),
        "task": task.sha256,
        "data_sha256": check_data(task.data),
    }


def require_same_configuration(runs: tuple[SealedRun, ...], order: Order, task: Task) -> None:
    """Make sure that ``order`` goes on with the configuration of the ``runs`` already sealed.

    Raises:
        Refusal: exit status 2, naming what differs.
    """
    own = configuration(order, task)
    code = code_hashes(order.launched)
    for run in runs:
        expected = {key: run.fact(key) for key in own} | {"task": run.fact("task", "sha256")}
        found = dict(own)
        if Outcome(str(run.fact("outcome"))).completed:  # after others, code may have been mended
            expected |= {key: run.fact("code", key) for key in code}
            found |= code
        for key, value in expected.items():
            if value != found[key]:
                finding = Finding(
                    "run.configuration",
                    f"{key} {value}, as in the runs already in this folder",
                    f"{key} {found[key]}",
                    "choose a new entry with --system NAME, or another folder with --out",
                    path=str(run.log.path),
                )
                raise Refusal(finding, ExitCode.USAGE)
