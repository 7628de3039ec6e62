"""Checks that the runs of a result, and the nodes of a run, have the same configuration.

A difference is reported as one `UserError` before any rank is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.run.folder import completed_runs, sealed_runs
from hybridperf.run.provenance import code_hashes
from hybridperf.tasks.data import check_data
from hybridperf.tasks.registry import in_suite
from hybridperf.untrusted import parse_object, read_object, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.log.package import Package, SealedRun
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

__all__ = [
    "differences",
    "first_difference",
    "hardware",
    "require_same_configuration",
    "require_same_request",
    "settle_system",
    "settle_task",
    "stated_by_node",
]

_HARDWARE: Final = (
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_memory_capacity",
    "host_processor_model_name",
    "framework",
)
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
    finding = Finding("run.system", expected, found, remedy, path=str(package.system_file))
    raise UserError(finding, ExitCode.USAGE)


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
        "task": task.sha256,
        "data_sha256": check_data(task.data),
    }


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
    _require_equal(expected, found, "the unfinished run in this folder", str(spec.path))


def _require_equal(
    expected: Mapping[str, object], found: Mapping[str, object], whose: str, path: str
) -> None:
    for key, value in expected.items():
        if value != found[key]:
            finding = Finding(
                "run.configuration",
                f"{key} {value}, as in {whose}",
                f"{key} {found[key]}",
                "choose a new entry with --system NAME, or another folder with --out",
                path=path,
            )
            raise UserError(finding, ExitCode.USAGE)


def stated_by_node(request: RunRequest, task: Task) -> dict[str, object]:
    """Return the request and the hashes of data and code on this node, which all nodes compare.

    The path of a task of the suite is included, because every rank reads it at node 0's path.
    """
    place = request.task_path.absolute() if in_suite(request.task_path) else ""
    return {
        "nodes": request.nodes.count,
        **_configuration(request, task),
        "task_path": str(place),
        **code_hashes(request.launched),
    }


def hardware(description: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a system description that must be the same on all nodes."""
    return {key: description[key] for key in _HARDWARE}


def first_difference(
    ours: tuple[Mapping[str, object], ...], theirs: tuple[Mapping[str, object], ...], node: int
) -> Finding | None:
    """Return the first difference between node 0 (``ours``) and ``node`` (``theirs``), if any.

    Both are pairs of what `stated_by_node` and `hardware` return, compared in this order.
    """
    remedies = ("give every node the same command and code", "choose nodes of one kind")
    for remedy, own, others in zip(remedies, ours, theirs, strict=True):
        for key, value in own.items():
            if others.get(key) != value:
                expected = f"{key} {value!s:.{_LONGEST}} on node {node} as on node 0"
                found = f"{others.get(key)!s:.{_LONGEST}}"
                return Finding("nodes.same", expected, found or "nothing", remedy)
    return None


def differences(ours: Mapping[str, object], theirs: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of ``theirs`` whose values differ from those in ``ours``."""
    return {key: value for key, value in theirs.items() if ours.get(key) != value}
