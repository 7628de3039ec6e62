"""What stands beside made-up logs: chained attempts, predictions and keys."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

from hybridperf.log import keys
from hybridperf.log.chain import GENESIS, split_line
from hybridperf.rules.evidence import SIGNERS, commitment_of, encoded, labels_here, link_at, seed_of
from hybridperf.tasks.registry import accepted_tensors, find_task
from tests.packages import TASK, change, edit_log, edit_manifest, log_path, place, read_bodies, seal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hybridperf.log.package import Package

SECRET = "5" * 64
LANDLOCK = {"kind": "landlock", "abi": 7}


def numbers_of(package: Package) -> list[int]:
    """Return the numbers of a result's attempts, sorted."""
    return sorted(int(path.stem[7:]) for path in package.folder.glob("result_*.txt"))


def attempt_line(like: str, value: dict[str, object]) -> str:
    """Return the first line of an attempt's log, stamped as the line ``like``."""
    return json.dumps(json.loads(like) | {"key": keys.ATTEMPT, "value": value})


def chain(package: Package, links: Sequence[tuple[str, int]] = ()) -> None:
    """Chain the attempts of a result as the harness does, with seeds that were committed to.

    ``links`` are secret and position of the seed of each attempt.
    """
    previous = GENESIS
    numbers = numbers_of(package)
    pairs = links or [(SECRET, position) for position in range(1, len(numbers) + 1)]
    for number, (secret, position) in zip(numbers, pairs, strict=True):
        link = link_at(secret, position)
        value: dict[str, object] = {
            "number": number,
            "previous": previous,
            "seeds": commitment_of(secret),
            "position": position,
            "link": link,
        }
        edit_log(package, number, functools.partial(_begin, value, seed_of(link)))
        edit_manifest(package, number, seed=seed_of(link))
        previous = last_hash(package, number)
    seal(package.root)


def _begin(value: dict[str, object], seed: int, bodies: list[str]) -> None:
    if json.loads(bodies[0])["key"] == keys.ATTEMPT:
        bodies.pop(0)
    bodies.insert(0, attempt_line(bodies[0], value))
    change(bodies, keys.SEED, value=seed)


def describe_as_found(package: Package, **fields: object) -> None:
    """Describe the machine as the harness does, with what it found, but for ``fields``."""
    facts = {
        "accelerators": {"used": 0, "gpus": []},
        "processor": {"model": "EPYC", "physical_cores": 2, "sockets": 1},
    }
    found = json.loads(package.system_file.read_text())
    found |= {"host_processor_model_name": "EPYC", "host_processor_core_count": "2"}
    package.system_file.write_text(json.dumps(found | {"hybridperf": facts} | fields))
    digest = hashlib.sha256(package.system_file.read_bytes()).hexdigest()
    for number in numbers_of(package):
        edit_manifest(package, number, system={"path": package.system_file.name, "sha256": digest})
    seal(package.root)


def last_hash(package: Package, number: int) -> str:
    """Return the hash of the last line of an attempt's log."""
    line = log_path(package, number).read_text().splitlines()[-1]
    parts = split_line(line)
    assert parts is not None
    return parts[1]


def keep_models(package: Package) -> None:
    """Keep predictions of every run, made in a sandbox by the suite's own predictor."""
    task = find_task(TASK)
    labels = labels_here(task, task.data.sha256)
    assert labels is not None
    for number in numbers_of(package):
        bodies = read_bodies(log_path(package, number))
        quality = json.loads(bodies[place(bodies, keys.EVAL_ACCURACY, -1)])["value"]
        right = round(quality * len(labels))
        predicted = labels.copy()
        predicted[right:] = (predicted[right:] + 1) % 10
        content = encoded(predicted)
        name = f"predictions_{number}.npy"
        (package.folder / name).write_bytes(content)
        share = right / len(labels)
        edit_log(package, number, functools.partial(_report, share))
        edit_manifest(
            package,
            number,
            model={"count": 104, "values": 514155, "sha256": accepted_tensors(task)[0]},
            predictor={"package": "hybridperf_reference", "sha256": "b" * 64},
            predictions={"path": name, "sha256": hashlib.sha256(content).hexdigest()},
            rescoring={
                "problem": "",
                "quality": share,
                "reported": share,
                "tolerance": 0.0034,
                "earlier": {"epoch": 1, "quality": 0.5, "reported": 0.5},
            },
        )
        edit_log(package, number, hand_over)
    state_sandbox(package, "sandboxed", LANDLOCK)


def hand_over(bodies: list[str]) -> None:
    """State that ranks handed over weights in every evaluation."""
    for index in range(len(bodies) - 1, -1, -1):
        entry = json.loads(bodies[index])
        if entry["key"] == keys.EVAL_STOP:
            own = {"key": keys.WEIGHTS, "value": {"ranks": 1, "bytes": 2_000_000}}
            own |= {"event_type": "POINT_IN_TIME"}
            bodies.insert(index, json.dumps(entry | own))


def state_sandbox(package: Package, mode: str | None, sandbox: dict[str, Any] | None) -> None:
    """State mode and sandbox in every log and manifest; None for neither."""
    stated: dict[str, object] = {keys.MODE: mode, keys.SANDBOX: sandbox}
    for number in numbers_of(package):
        edit_log(package, number, functools.partial(_state, stated))
        edit_manifest(package, number, mode=mode, sandbox=sandbox)
    seal(package.root)


def _state(stated: dict[str, object], bodies: list[str]) -> None:
    bodies[:] = [body for body in bodies if json.loads(body)["key"] not in stated]
    at = place(bodies, keys.PLAN)
    for key, value in stated.items():
        if value is not None:
            bodies.insert(at, json.dumps(json.loads(bodies[at]) | {"key": key, "value": value}))


def _report(quality: float, bodies: list[str]) -> None:
    change(bodies, keys.EVAL_ACCURACY, -1, value=quality)


def make_key(folder: Path, name: str) -> Path:
    """Make an SSH key without a passphrase."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def list_key(root: Path, org: str, key: Path) -> None:
    """List ``key`` as one of ``org``."""
    public = key.with_suffix(".pub").read_text()
    with (root / SIGNERS).open("a") as file:
        file.write(f"{org} {public}")
