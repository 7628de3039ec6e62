"""Edits of logs and results that a mutation is made of."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from hybridperf.log import keys
from hybridperf.log.package import result_names
from tests.packages import (
    change,
    description,
    edit_log,
    edit_manifest,
    log_path,
    place,
    read_bodies,
    take_less_time,
)
from tests.rules.mutation import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.log.package import Package

WITHIN = 2 * 1195 // 32 + 10  #: step of a checkpoint within the third epoch


def drop(bodies: list[str], *indices: int) -> None:
    for index in sorted(indices, reverse=True):
        del bodies[index]


def repeat(bodies: list[str], key: str) -> None:
    index = place(bodies, key)
    bodies.insert(index, bodies[index])


def move(bodies: list[str], key: str, nth: int, before: str) -> None:
    """Move a line, with the time stamp of its new place."""
    line = json.loads(bodies.pop(place(bodies, key, nth)))
    index = place(bodies, before)
    line["time_ms"] = json.loads(bodies[index])["time_ms"]
    bodies.insert(index, json.dumps(line))


def begin_from_weights(
    bodies: list[str], sha256: str = "ab" * 32, quality: object = 0.9, before: str = keys.INIT_STOP
) -> None:
    """State the evaluation of given weights before the first line with the key ``before``."""
    index = place(bodies, before)
    value = {"file": "model.safetensors", "sha256": sha256, "quality": quality}
    line = json.loads(bodies[index]) | {"key": keys.INITIAL, "event_type": "POINT_IN_TIME"}
    bodies.insert(index, json.dumps(line | {"value": value}))


def without_evaluation(bodies: list[str]) -> None:
    """Train through the third evaluation without one."""
    for key in (keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY):
        drop(bodies, place(bodies, key, 2))


def only_last_evaluation(bodies: list[str]) -> None:
    for _ in range(7):
        for key in (keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY):
            drop(bodies, place(bodies, key))


def stop_late(bodies: list[str]) -> None:
    """Reach the target at the last evaluation but one, and train on."""
    change(bodies, keys.EVAL_ACCURACY, -2, value=0.981)


def stop_early(bodies: list[str]) -> None:
    """Stop the clock before the last evaluation."""
    stop = json.loads(bodies.pop())
    first = place(bodies, keys.EVAL_START, -1)
    block = json.loads(bodies.pop(place(bodies, keys.BLOCK_STOP, -1)))
    bodies[first:first] = [json.dumps(block), json.dumps(stop)]


def give_up(bodies: list[str]) -> None:
    """Give up after two blocks, before target and limit."""
    del bodies[place(bodies, keys.BLOCK_START, 2) : -1]
    change(bodies, keys.RUN_STOP, 0, metadata={"status": "aborted"})


def raw(bodies: list[str], key: str, nth: int, text: str) -> None:
    """Write ``text`` where the value stands."""
    change(bodies, key, nth, value="VALUE")
    index = place(bodies, key, nth)
    bodies[index] = bodies[index].replace('"VALUE"', text)


def count_energy(bodies: list[str], *joules: object, **metadata: object) -> None:
    """Have the log state what a GPU took in the first epoch, in a line for each of ``joules``."""
    stop = place(bodies, keys.RUN_STOP)
    entry = json.loads(bodies[stop - 1]) | {"key": keys.ENERGY, "event_type": "POINT_IN_TIME"}
    where = {"file": "", "lineno": 1, "node": 0, "nodes": 1, "epoch_num": 1}
    for each in reversed(joules):
        value = {"joules": {"nvml": {"gpu-0": each}}, "missing": {}}
        bodies.insert(stop, json.dumps(entry | {"value": value, "metadata": where | metadata}))


def epoch(number: object) -> dict[str, object]:
    return {"epoch_num": number}


def block(first: int, steps: object, samples: object) -> dict[str, object]:
    return {"first_epoch_num": first, "steps": steps, "samples": samples}


def hyperparameter(key: str, value: object) -> Callable[[list[str]], None]:
    def edit(bodies: list[str]) -> None:
        table = json.loads(bodies[place(bodies, keys.HYPERPARAMETERS)])["value"]
        change(bodies, keys.HYPERPARAMETERS, value=table | {key: value})

    return edit


def hyperparameter_under_both_names(bodies: list[str]) -> None:
    hyperparameter("optimizer.momentum", 0.5)(bodies)
    change(bodies, keys.OPT_MOMENTUM, value=0.5)


def same_seed(package: Package) -> None:
    edit_log(package, RUN, lambda bodies: change(bodies, keys.SEED, value=1000))
    edit_manifest(package, RUN, seed=1000)


def other_plan(package: Package) -> None:
    edit_log(package, RUN, lambda bodies: change(bodies, keys.PLAN, value="pp=2"))
    edit_manifest(package, RUN, plan="pp=2")


def remove(package: Package, *numbers: int) -> None:
    for number in numbers:
        for name in result_names(number):
            (package.folder / name).unlink()


def renumber(package: Package) -> None:
    """Hide an attempt by giving its number to the last."""
    remove(package, RUN)
    for old, new in zip(result_names(4), result_names(RUN), strict=True):
        (package.folder / old).rename(package.folder / new)


def miss_two(package: Package) -> None:
    def miss(bodies: list[str]) -> None:
        change(bodies, keys.EVAL_ACCURACY, -1, value=0.9)
        change(bodies, keys.RUN_STOP, metadata={"status": "aborted"})
        last = [json.loads(body) for body in bodies[place(bodies, keys.BLOCK_START, -1) : -1]]
        end = json.loads(bodies.pop())
        for epoch in range(9, 15):
            for line in last:
                if "epoch_num" in line["metadata"]:
                    line["metadata"]["epoch_num"] = epoch
                bodies.append(json.dumps(line | {"time_ms": last[-1]["time_ms"] + epoch}))
        bodies.append(json.dumps(end | {"time_ms": end["time_ms"] + epoch}))

    for number in (1, 3):
        edit_log(package, number, miss)
        rescoring = {"quality": 0.9, "reported": 0.9, "tolerance": 0.0034, "problem": ""}
        edit_manifest(package, number, outcome="target_missed", rescoring=rescoring)


def interrupt(package: Package) -> None:
    """End the run from outside, before its last block ends."""

    def end(bodies: list[str]) -> None:
        stop = json.loads(bodies.pop())
        drop(bodies, place(bodies, keys.BLOCK_STOP, -1))
        ending = stop | {
            "event_type": "POINT_IN_TIME",
            "key": keys.ENDING,
            "value": {"outcome": "interrupted", "reason": "stopped by SIGINT"},
        }
        bodies += [json.dumps(ending), json.dumps(stop | {"metadata": {"status": "aborted"}})]

    edit_log(package, RUN, end)
    edit_manifest(package, RUN, outcome="interrupted", rescoring=None)


def edit_byte(package: Package) -> None:
    path = log_path(package, RUN)
    path.write_text(path.read_text().replace('"value": 1002', '"value": 9999'))


def append_text(package: Package) -> None:
    with log_path(package, RUN).open("a") as file:
        file.write("some other output\n")


def cut_off(package: Package) -> None:
    path = log_path(package, RUN)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def strip_hashes(package: Package) -> None:
    path = log_path(package, RUN)
    lines = [f":::MLLOG {body}\n" for body in read_bodies(path)]
    path.write_text("".join(lines))


def rename_folder(package: Package) -> None:
    package.folder.rename(package.folder.with_name("resnet-cluster"))


def rename_system(package: Package) -> None:
    package.folder.parent.rename(package.folder.parent.with_name("supercomputer"))
    package.system_file.rename(package.system_file.with_name("supercomputer.json"))


def rename_org(package: Package) -> None:
    (package.root / package.org).rename(package.root / "other")


def reach_first(bodies: list[str]) -> None:
    """Reach the target in the first evaluation, and not in the last."""
    change(bodies, keys.EVAL_ACCURACY, 0, value=0.982)
    change(bodies, keys.EVAL_ACCURACY, -1, value=0.1)


def learning_rate_under_both_names(bodies: list[str]) -> None:
    hyperparameter("optimizer.lr", 0.1005)(bodies)
    change(bodies, keys.OPT_BASE_LEARNING_RATE, value=0.1005)


def too_fast(package: Package) -> None:
    """Compute faster, in one run, than the accelerator of all of them can."""
    machine = description(package.org, package.system) | {
        "accelerators_per_node": 1,
        "accelerator_model_name": "NVIDIA T4",
    }
    package.system_file.write_text(json.dumps(machine))
    digest = hashlib.sha256(package.system_file.read_bytes()).hexdigest()
    for number in range(5):
        edit_manifest(package, number, system={"path": "laptop.json", "sha256": digest})

    edit_log(package, RUN, lambda bodies: take_less_time(bodies, 0.0003))
    edit_manifest(package, RUN, supervisor={"initialisation_s": 9.0, "run_s": 0.004})


def resume(
    bodies: list[str],
    *,
    first_step: int = WITHIN,
    saved: int = WITHIN,
    counted: int = 10,
    steps: int | None = None,
    plan: str = "dp=2",
) -> None:
    """Let the run be resumed in its third epoch, from a checkpoint within that."""

    def line(like: str, key: str, kind: str, value: object = None, **metadata: object) -> str:
        entry = json.loads(like) | {"event_type": kind, "key": key, "value": value}
        return json.dumps(entry | {"metadata": {"file": "", "lineno": 1, **metadata}})

    last = next(
        at
        for at, body in enumerate(bodies)
        if at > place(bodies, keys.BLOCK_START, 2) and json.loads(body)["key"] == keys.BLOCK_STOP
    )
    stop: dict[str, Any] = json.loads(bodies[last])
    count = (3 * 1195 // 32) - first_step if steps is None else steps
    stop["metadata"] |= {"steps": count, "samples": 32 * count}
    bodies[last] = json.dumps(stop)
    start = place(bodies, keys.BLOCK_START, 2)
    like = bodies[start]
    segment = {"epoch": 2, "gap_s": 0.0, "first_step": first_step, "plan": plan, "ranks": 1}
    bodies[start + 1 : start + 1] = [
        line(like, keys.CHECKPOINT, "POINT_IN_TIME", {"seconds": 0.1}, step=saved, steps=counted),
        line(like, keys.BLOCK_STOP, "INTERVAL_END", interrupted=True),
        line(like, keys.RESUMED, "POINT_IN_TIME", segment),
        like,
    ]
