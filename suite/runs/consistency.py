"""All runs of a result are of one system and one configuration: refused before they are mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.runs.ending import Outcome
from suite.runs.provenance import code_facts

if TYPE_CHECKING:
    from suite.logs.package import Package, SealedRun
    from suite.runs.order import Order
    from suite.tasks.task import Task

__all__ = ["require_same_configuration", "settle_system"]


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


def require_same_configuration(runs: tuple[SealedRun, ...], order: Order, task: Task) -> None:
    """Make sure that ``order`` goes on with the configuration of the ``runs`` already sealed.

    Raises:
        Refusal: exit status 2, naming what differs.
    """
    own: dict[str, object] = {
        "plan": str(order.plan),
        "division": order.division,
        "overrides": dict(order.overrides),
        "task": task.sha256,
    }
    facts = code_facts(order.launched)
    code = {key: facts[key] for key in ("trainer", "trainer_sha256", "suite_sha256")}
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
