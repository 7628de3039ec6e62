"""The configuration that the runs of a result, and the nodes of a run, have in common.

A difference is reported as one `UserError` before any rank is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.run.channel import NodeFacts
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.run.folder import completed_runs, sealed_runs
from hybridperf.run.provenance import code_hashes
from hybridperf.run.sandbox import mode_of, sandbox_facts
from hybridperf.tasks.data import check_data
from hybridperf.tasks.registry import in_suite
from hybridperf.untrusted import parse_object, read_object, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.log.package import Package, SealedRun
    from hybridperf.run.initial import InitialWeights
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

__all__ = [
    "node_facts",
    "require_same_configuration",
    "require_same_request",
    "settle_system",
    "settle_task",
]

_LONGEST: Final = 80  #: characters of a value in a message
_ABSENT: Final = object()  #: in the place of a field that a description lacks


def settle_system(package: Package, description: dict[str, object], request: RunRequest) -> None:
    """Write the system description, or compare it with the one already in the submission.

    Raises:
        UserError: exit status 2 if they differ, naming the first field that does.
    """
    entry = {"submitter": request.org, "division": request.division, "status": "onprem"}
    content = canonical_json(description | entry | {"system_name": package.system})
    if not package.system_file.exists():
        write_atomically(package.system_file, content)
        return
    if package.system_file.read_bytes() == content:
        return
    expected, found = "the description that the harness wrote", "an edited one"
    try:
        before = read_object(package.system_file)
    except (OSError, ValueError) as error:
        found = reason(error)
    else:
        if differs := _first_field(before, parse_object(content.decode())):
            name, old, new = differs
            expected = f"{name} {_shown(old)}, as on the system of the earlier runs"
            found = _shown(new)
    remedy = "choose a new entry with --system NAME, or another folder with --out"
    raise UserError.of("run.system", expected, found, remedy, path=str(package.system_file))


def _first_field(before: object, now: object, name: str = "") -> tuple[str, object, object] | None:
    """Return name and values of the first field that differs between two descriptions."""
    if before == now:
        return None
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else key
            if found := _first_field(before.get(key, _ABSENT), now.get(key, _ABSENT), inner):
                return found
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            if found := _first_field(one, other, f"{name}.{index}"):
                return found
    return name, before, now


def _shown(value: object) -> str:
    return "none" if value is _ABSENT else f"{value!r:.{_LONGEST}}"


def settle_task(package: Package, request: RunRequest, task: Task) -> str:
    """Return the path from which runs read the task; copy a user's own task beside the logs.

    The copy lets others check the result, and lets the user edit the original meanwhile.

    Raises:
        UserError: as `require_same_configuration`.
    """
    if in_suite(request.task_path):
        return str(request.task_path.absolute())
    require_same_configuration(sealed_runs(package), request, task)
    write_atomically(package.task_file, request.task_path.read_bytes())
    return f"../{package.task_file.name}"


def _configuration(request: RunRequest, task: Task) -> dict[str, object]:
    """Return what all runs of ``request`` have in common, by the keys of the manifest."""
    return {
        "plan": str(request.plan),
        "division": request.division,
        "overrides": dict(request.overrides),
        "initial": _initial_facts(request.initial_weights()),
        "task": task.sha256,
        "data_sha256": check_data(task.data) if request.reads_data else "",
    }


def _initial_facts(initial: InitialWeights | None) -> dict[str, object] | None:
    """Return what a manifest states of the weights to begin from; None if it states nothing."""
    return None if initial is None else initial.facts


def require_same_configuration(
    runs: tuple[SealedRun, ...], request: RunRequest, task: Task
) -> None:
    """Check that ``request`` has the configuration of the ``runs`` already sealed.

    Raises:
        UserError: exit status 2, naming the first difference.
    """
    own = _configuration(request, task)
    code = code_hashes(request.launched)
    for run in runs:
        expected = {key: run.fact(key) for key in own} | {"task": run.fact("task", "sha256")}
        found = dict(own)
        if completed_runs([run]):  # after a failure, code may be corrected
            expected |= {key: run.fact("code", key) for key in code}
            found |= code
        _require_equal(expected, found, "the runs already in this folder", str(run.log.path))


def require_same_request(spec: RunSpec, request: RunRequest) -> None:
    """Check that ``request`` has the configuration of the attempt ``spec``, which is not sealed.

    Raises:
        UserError: exit status 2, naming the first difference.
    """
    found: dict[str, object] = {
        "plan": str(request.plan),
        "division": request.division,
        "overrides": dict(request.overrides),
    }
    expected = {key: getattr(spec, key) for key in found}
    found["initial"] = _initial_facts(request.initial_weights())
    expected["initial"] = _initial_facts(spec.initial)
    _require_equal(expected, found, "the unfinished run in this folder", str(spec.path))


def _require_equal(
    expected: Mapping[str, object], found: Mapping[str, object], whose: str, path: str
) -> None:
    for key, value in expected.items():
        if value != found[key]:
            raise UserError.of(
                "run.configuration",
                f"{key} {value}, as in {whose}",
                f"{key} {found[key]}",
                "choose a new entry with --system NAME, or another folder with --out",
                path=path,
            )


def node_facts(request: RunRequest, task: Task, description: dict[str, object]) -> NodeFacts:
    """Return what this node, a system of the given ``description``, states to the other nodes.

    The path of a task of the suite is included, because every rank reads it at node 0's path.
    """
    place = request.task_path.absolute() if in_suite(request.task_path) else ""
    sandbox = sandbox_facts(request.mode, request.nodes.count)
    configuration = {
        "nodes": request.nodes.count,
        **_configuration(request, task),
        **({"data_sha256": ""} if mode_of(task, request.mode) == "sandboxed" else {}),
        "task_path": str(place),
        **{f"sandbox.{key}": value for key, value in sandbox.items()},
        "initial_path": initial.path if (initial := request.initial_weights()) else "",
        **code_hashes(request.launched),
    }
    return NodeFacts(configuration, description)
