"""Put the example of a rule into a complete submission: broken, or mended."""

from __future__ import annotations

import functools
import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from hybridperf.log import keys
from hybridperf.log.package import TASK_FILE, Package, result_names
from hybridperf.rules.check import check_path
from hybridperf.rules.mlperf.ruleset import load_ruleset
from hybridperf.rules.rule import READING
from hybridperf.score.rcp import Reference
from hybridperf.tasks.registry import task_path
from tests.evidence import chain, keep_models
from tests.messages.case import permissions_kept
from tests.packages import (
    TASK,
    change,
    edit_log,
    edit_manifest,
    log_path,
    place,
    seal,
    write_result,
)
from tests.rules.mlperf.strict_logs import RULESET, line, read_lines, where, write
from tests.rules.round_folder import RESULT, RUNS, SYSTEM_FILE, findings, run, write_submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.rules.explain import Example
    from hybridperf.score.rcp import RcpSets

OWN_RUN: Final = 2  #: that says what is in an example, if nothing else is said
Lines = list[dict[str, Any]]


def is_found(rule: str, example: Example, *, ours: bool, mended: bool, root: Path) -> bool:
    """Tell whether ``rule`` is broken by a submission that says what ``example`` says."""
    text = example.mended if mended else example.breaks
    lines, like = text.strip().splitlines(), example.mended.strip().splitlines()
    runs = example.runs or (OWN_RUN if ours else 0,)
    says = runs[:1] if mended else runs
    if ours:
        _put_into_own(_given(example, root), example, lines, like, says)
        with permissions_kept():
            return any(each.rule == rule for each in check_path(root).findings)
    write_submission(root)
    references: RcpSets | None = None
    if "epochs of the reference" in example.given:
        batch = where(run(0), keys.GLOBAL_BATCH_SIZE)["value"]
        amounts = (float(example.given.split()[0]),) * (2 * RUNS)
        references = {"": {"resnet": (Reference(batch, amounts),)}}
    else:
        assert not example.given
    _put_into_round(root, example, lines, like, says)
    return any(each.rule == rule for each in findings(root, _ruleset(rule, root), references))


def _ruleset(rule: str, root: Path) -> str | Path:
    """Return the ruleset of a round, or one that extends it with ``rule`` of later rounds."""
    if rule in READING or rule in load_ruleset(RULESET).rules:
        return RULESET
    file = root.with_suffix(".toml")
    file.write_text(
        f'name = "later"\nsource = "later"\nextends = "{RULESET}"\n[strict.rules."{rule}"]\n'
    )
    return file


def _given(example: Example, root: Path) -> Package:
    """Write a result of our own with what is given beside its logs."""
    package = write_result(root)
    if example.given == "chained attempts":
        chain(package)
    elif example.given == "kept predictions":
        keep_models(package)
    elif example.given == "a module that no installer recorded":
        for number in range(5):
            edit_manifest(package, number, imports={"elsewhere": {"helper": "1" * 64}})
    elif example.given == "a task of one's own":
        _name_own_task(package)
    else:
        assert not example.given
    return package


def _name_own_task(package: Package) -> None:
    text = task_path(TASK).read_text().replace(f'name = "{TASK}"', 'name = "mine/own"')
    (package.folder / TASK_FILE).write_text(text)
    for number in range(5):
        edit_log(
            package,
            number,
            lambda bodies: change(bodies, keys.SUBMISSION_BENCHMARK, value="mine/own"),
        )


def _put_into_own(
    package: Package, example: Example, lines: list[str], like: list[str], runs: tuple[int, ...]
) -> None:
    root = package.root
    if example.of == "files":
        _put_files(root, lines, like, other=lambda: write_result(root, system="desk"))
        return
    if example.of == "log":
        for number in runs:
            edit_log(package, number, lambda bodies: _put_bodies(bodies, example, lines, like))
        seal(root)
        return
    manifests = [package.folder / result_names(number)[1] for number in runs]
    files = {
        "sealed log": [log_path(package, OWN_RUN)],
        "text": [log_path(package, OWN_RUN)],
        "manifest": manifests,
        "description": [package.system_file],
        "task": [package.folder / TASK_FILE],
    }
    for path in files[example.of]:
        _put_text(path, example, lines, like)


def _put_into_round(
    root: Path, example: Example, lines: list[str], like: list[str], runs: tuple[int, ...]
) -> None:
    if example.of == "files":
        _put_files(root, lines, like)
    elif example.of == "log":
        for number in runs:
            path = root / RESULT / f"result_{number}.txt"
            bodies = [json.dumps(each) for each in read_lines(path)]
            _put_bodies(bodies, example, lines, like)
            write(path, [json.loads(each) for each in bodies])
    elif example.of == "scaling":
        (root / RESULT / "scaling.json").write_text("\n".join(lines))
    else:
        name = SYSTEM_FILE if example.of == "description" else f"{RESULT}/result_0.txt"
        _put_text(root / name, example, lines, like)


def _put_text(path: Path, example: Example, lines: list[str], like: list[str]) -> None:
    """Put the text of an example into a file: fields of its JSON object, or a part of its text."""
    before = path.read_text()
    if example.of in {"sealed log", "task"}:
        (old,), (new,) = like, lines
        assert old in before
        path.write_text(before.replace(old, new))
    elif example.of == "text":
        path.write_text("".join(f"{each}\n" for each in lines))
    else:
        text = "\n".join(lines)
        try:
            path.write_text(json.dumps(_merged(json.loads(before), json.loads(text))))
        except ValueError:
            path.write_text(text)


def _merged(table: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Return ``table`` with what is ``said``, also within objects."""
    both = {
        name: _merged(table[name], value)
        if isinstance(value, dict) and isinstance(table.get(name), dict)
        else value
        for name, value in said.items()
    }
    return table | both


def _put_bodies(bodies: list[str], example: Example, lines: list[str], like: list[str]) -> None:
    """Say what the ``lines`` of an example say where a log has the lines that they are ``like``."""
    counts: dict[str, int] = {}
    places = []
    for each in like:
        key = json.loads(each)["key"]
        nth = counts[key] = counts.get(key, -1) + 1
        here = [at for at, body in enumerate(bodies) if json.loads(body)["key"] == key]
        if nth >= len(here):
            stop = place(bodies, keys.RUN_STOP)
            bodies.insert(stop, bodies[here[-1]] if here else _new_line(bodies[stop - 1], key))
            here.append(stop)
        places.append(here[-1 - nth] if example.last else here[nth])
    for at, text in zip(places, lines, strict=False):
        entry, said = json.loads(bodies[at]), json.loads(text)
        if "metadata" in said:  # what a line does not say of where it was written stays
            entry["metadata"] = {name: entry["metadata"][name] for name in ("file", "lineno")}
        bodies[at] = json.dumps(_merged(entry, said))
    for at in sorted(places[len(lines) :], reverse=True):
        del bodies[at]
    for each in () if like else lines:
        stop, said = place(bodies, keys.RUN_STOP), json.loads(each)
        new = json.loads(_new_line(bodies[stop - 1], said["key"]))
        bodies.insert(stop, json.dumps(_merged(new, said)))


def _new_line(before: str, key: str) -> str:
    """Return a line with ``key`` that is written when the line ``before`` is."""
    return json.dumps(json.loads(before) | {"key": key, "event_type": line(key)["event_type"]})


def _claim(package: Package) -> None:
    """Let the logs of a result name its folder."""
    for number in range(5):
        edit = functools.partial(change, key=keys.SUBMISSION_PLATFORM, value=package.system)
        edit_log(package, number, edit)


def _put_files(
    root: Path, lines: list[str], like: list[str], other: Callable[[], object] | None = None
) -> None:
    """Make, rename or remove files, as the lines of an example name them."""
    for nth, text in enumerate(lines):
        name, _, target = text.partition(" -> ")
        name, _, access = name.partition(", which ")
        name, _, original = name.partition(", a copy of ")
        original, _, claimed = original.partition(" with logs ")
        name, _, own = name.partition(", of ")
        name, _, size = name.partition(" (")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        old = root / like[nth] if nth < len(like) else None
        if path.exists():
            if access:
                path.chmod(0 if access == "nobody may read" else 0o644)
            continue
        if target:
            path.symlink_to(target)
        elif original:
            shutil.copytree(root / original, path)
            shutil.copy(*(root / "acme/systems" / f"{each}.json" for each in ("laptop", "desk")))
            if claimed:
                _claim(Package(root, "acme", "desk", TASK.replace("/", "-")))
        elif own:
            assert other is not None
            other()
        elif size:
            with path.open("wb") as file:
                file.truncate(int(size.split()[0]) * 10**6)
        elif old is not None and old.exists():
            old.rename(path)
        else:
            path.write_text("x\n")
    if not lines:
        for each in like:
            (root / each).unlink()
