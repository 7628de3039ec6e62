"""Changes to a valid result, each with the rules that find it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from suite.logs import keys
from suite.logs.package import result_names
from tests.packages import (
    change,
    edit_log,
    edit_manifest,
    log_path,
    place,
    read_bodies,
    shift,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from suite.logs.package import Package

RUN = 2  #: the number of the run that is changed


@dataclass(frozen=True)
class Mutation:
    """One change, and exactly the rules that find it."""

    name: str
    apply: Callable[[Package], None]
    rules: frozenset[str]
    at: tuple[str, int] | None = None  #: key and place of the line that the first rule names
    first_rule: str = field(default="")


def _mutation(
    name: str, apply: Callable[[Package], None], *rules: str, at: tuple[str, int] | None = None
) -> Mutation:
    return Mutation(name, apply, frozenset(rules), at, rules[0])


def _log(
    name: str,
    edit: Callable[[list[str]], None],
    *rules: str,
    at: tuple[str, int] | None = None,
) -> Mutation:
    """Change the log as its writer could have: chain and manifest follow."""
    return _mutation(name, lambda package: edit_log(package, RUN, edit), *rules, at=at)


def _fields(
    name: str, key: str, nth: int, *rules: str, at: tuple[str, int] | None = None, **fields: object
) -> Mutation:
    return _log(
        name, lambda bodies: change(bodies, key, nth, **fields), *rules, at=at or (key, nth)
    )


def _value(name: str, key: str, value: object, *rules: str) -> Mutation:
    return _fields(name, key, 0, *rules, value=value)


def _absent(key: str, *rules: str) -> Mutation:
    return _log(f"no {key}", lambda bodies: _drop(bodies, place(bodies, key)), *rules)


def _manifest(name: str, *rules: str, **facts: object) -> Mutation:
    return _mutation(name, lambda package: edit_manifest(package, RUN, **facts), *rules)


def _nested(name: str, section: str, rule: str, **facts: object) -> Mutation:
    def apply(package: Package) -> None:
        edit_manifest(package, RUN, **{section: manifest_of(package)[section] | facts})

    return _mutation(name, apply, rule)


def _file(name: str, apply: Callable[[Package], None], *rules: str) -> Mutation:
    return _mutation(name, apply, *rules)


def manifest_of(package: Package) -> dict[str, Any]:
    """Return the manifest of the run that is changed."""
    path = package.folder / result_names(RUN)[1]
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def _drop(bodies: list[str], *indices: int) -> None:
    for index in sorted(indices, reverse=True):
        del bodies[index]


def _repeat(bodies: list[str], key: str) -> None:
    index = place(bodies, key)
    bodies.insert(index, bodies[index])


def _move(bodies: list[str], key: str, nth: int, before: str) -> None:
    """Move a line, with the time stamp of its new place."""
    line = json.loads(bodies.pop(place(bodies, key, nth)))
    index = place(bodies, before)
    line["time_ms"] = json.loads(bodies[index])["time_ms"]
    bodies.insert(index, json.dumps(line))


def _without_evaluation(bodies: list[str]) -> None:
    """Train through the third evaluation without one."""
    for key in (keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY):
        _drop(bodies, place(bodies, key, 2))


def _only_last_evaluation(bodies: list[str]) -> None:
    for _ in range(7):
        for key in (keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY):
            _drop(bodies, place(bodies, key))


def _stop_late(bodies: list[str]) -> None:
    """Reach the target at the last evaluation but one, and train on."""
    change(bodies, keys.EVAL_ACCURACY, -2, value=0.981)


def _stop_early(bodies: list[str]) -> None:
    """Stop the clock before the last evaluation."""
    stop = json.loads(bodies.pop())
    first = place(bodies, keys.EVAL_START, -1)
    block = json.loads(bodies.pop(place(bodies, keys.BLOCK_STOP, -1)))
    bodies[first:first] = [json.dumps(block), json.dumps(stop)]


def _give_up(bodies: list[str]) -> None:
    """Give up after two blocks, before target and limit."""
    del bodies[place(bodies, keys.BLOCK_START, 2) : -1]
    change(bodies, keys.RUN_STOP, 0, metadata={"status": "aborted"})


def _raw(bodies: list[str], key: str, nth: int, text: str) -> None:
    """Write ``text`` where the value stands."""
    change(bodies, key, nth, value="VALUE")
    index = place(bodies, key, nth)
    bodies[index] = bodies[index].replace('"VALUE"', text)


def _epoch(number: object) -> dict[str, object]:
    return {"epoch_num": number}


def _hyperparameter(key: str, value: object) -> Callable[[list[str]], None]:
    def edit(bodies: list[str]) -> None:
        table = json.loads(bodies[place(bodies, keys.HYPERPARAMETERS)])["value"]
        change(bodies, keys.HYPERPARAMETERS, value=table | {key: value})

    return edit


def _hyperparameter_under_both_names(bodies: list[str]) -> None:
    _hyperparameter("optimizer.momentum", 0.5)(bodies)
    change(bodies, keys.OPT_MOMENTUM, value=0.5)


def _same_seed(package: Package) -> None:
    edit_log(package, RUN, lambda bodies: change(bodies, keys.SEED, value=1000))
    edit_manifest(package, RUN, seed=1000)


def _other_plan(package: Package) -> None:
    edit_log(package, RUN, lambda bodies: change(bodies, keys.PLAN, value="pp=2"))
    edit_manifest(package, RUN, plan="pp=2")


def _remove(package: Package, *numbers: int) -> None:
    for number in numbers:
        for name in result_names(number):
            (package.folder / name).unlink()


def _renumber(package: Package) -> None:
    """Hide an attempt by giving its number to the last."""
    _remove(package, RUN)
    for old, new in zip(result_names(4), result_names(RUN), strict=True):
        (package.folder / old).rename(package.folder / new)


def _miss_two(package: Package) -> None:
    def miss(bodies: list[str]) -> None:
        change(bodies, keys.EVAL_ACCURACY, -1, value=0.9)
        change(bodies, keys.RUN_STOP, metadata={"status": "aborted"})
        last = [json.loads(body) for body in bodies[place(bodies, keys.BLOCK_START, -1) : -1]]
        end = bodies.pop()
        for epoch in range(9, 15):
            for line in last:
                if "epoch_num" in line["metadata"]:
                    line["metadata"]["epoch_num"] = epoch
                bodies.append(json.dumps(line | {"time_ms": last[-1]["time_ms"]}))
        bodies.append(end)

    for number in (1, 3):
        edit_log(package, number, miss)
        rescoring = {"quality": 0.9, "reported": 0.9, "tolerance": 0.0034, "problem": ""}
        edit_manifest(package, number, outcome="target_missed", rescoring=rescoring)


def _interrupt(package: Package) -> None:
    """End the run from outside, before its last block ends."""

    def end(bodies: list[str]) -> None:
        stop = json.loads(bodies.pop())
        _drop(bodies, place(bodies, keys.BLOCK_STOP, -1))
        ending = stop | {
            "event_type": "POINT_IN_TIME",
            "key": keys.ENDING,
            "value": {"outcome": "interrupted", "reason": "stopped by SIGINT"},
        }
        bodies += [json.dumps(ending), json.dumps(stop | {"metadata": {"status": "aborted"}})]

    edit_log(package, RUN, end)
    edit_manifest(package, RUN, outcome="interrupted", rescoring=None)


def _edit_byte(package: Package) -> None:
    path = log_path(package, RUN)
    path.write_text(path.read_text().replace('"value": 1002', '"value": 9999'))


def _append_text(package: Package) -> None:
    with log_path(package, RUN).open("a") as file:
        file.write("some other output\n")


def _cut_off(package: Package) -> None:
    path = log_path(package, RUN)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def _strip_hashes(package: Package) -> None:
    path = log_path(package, RUN)
    lines = [f":::MLLOG {body}\n" for body in read_bodies(path)]
    path.write_text("".join(lines))


def _rename_folder(package: Package) -> None:
    package.folder.rename(package.folder.with_name("resnet-cluster"))


def _rename_system(package: Package) -> None:
    package.folder.parent.rename(package.folder.parent.with_name("supercomputer"))
    package.system_file.rename(package.system_file.with_name("supercomputer.json"))


def _rename_org(package: Package) -> None:
    (package.root / package.org).rename(package.root / "other")


MUTATIONS = [
    # Form of the log.
    _absent(keys.SUBMISSION_STATUS, "log.keys"),
    _absent(keys.CACHE_CLEAR, "log.keys"),
    _absent(keys.TASK, "log.keys"),
    _absent(keys.HYPERPARAMETERS, "log.keys", "result.configuration"),
    _absent(keys.SEED, "log.keys", "run.manifest"),
    _absent(keys.OPT_NAME, "log.keys", "run.hyperparameters"),
    _absent(keys.OPT_MOMENTUM, "run.hyperparameters"),
    _absent(keys.INIT_START, "log.keys", "log.intervals"),
    _absent(keys.INIT_STOP, "log.keys", "log.intervals"),
    _absent(keys.RUN_START, "log.keys", "log.intervals"),
    _absent(keys.RUN_STOP, "log.keys", "log.intervals", "run.manifest", "result.run_count"),
    _log("two seeds", lambda bodies: _repeat(bodies, keys.SEED), "log.keys"),
    _log(
        "two run_starts",
        lambda bodies: _repeat(bodies, keys.RUN_START),
        "log.intervals",
        "log.keys",
        at=(keys.RUN_START, 1),
    ),
    _log(
        "two run_stops",
        lambda bodies: _repeat(bodies, keys.RUN_STOP),
        "log.intervals",
        "log.keys",
        at=(keys.RUN_STOP, 1),
    ),
    _log(
        "a block within a block",
        lambda bodies: _repeat(bodies, keys.BLOCK_START),
        "log.intervals",
        at=(keys.BLOCK_START, 1),
    ),
    _log(
        "an evaluation that never ends",
        lambda bodies: _drop(bodies, place(bodies, keys.EVAL_STOP, 3)),
        "log.intervals",
        at=(keys.BLOCK_STOP, 3),
    ),
    _fields(
        "a run_stop that is no end",
        keys.RUN_STOP,
        0,
        "log.intervals",
        at=(keys.RUN_START, 0),
        event_type="POINT_IN_TIME",
    ),  # fmt: skip
    _log(
        "an evaluation outside of its block",
        lambda bodies: _move(bodies, keys.EVAL_STOP, 0, keys.RUN_STOP),
        "log.intervals",
        at=(keys.BLOCK_STOP, 0),
    ),
    _value("caches that were not cleared", keys.CACHE_CLEAR, False, "log.order"),
    _value("caches of which nothing is said", keys.CACHE_CLEAR, None, "log.order"),
    _log(
        "caches cleared after initialisation",
        lambda bodies: _move(bodies, keys.CACHE_CLEAR, 0, keys.RUN_START),
        "log.order",
        at=(keys.INIT_START, 0),
    ),
    _log(
        "a run that starts during initialisation",
        lambda bodies: _move(bodies, keys.RUN_START, 0, keys.INIT_STOP),
        "log.order",
        "log.intervals",
        at=(keys.RUN_START, 0),
    ),
    _log(
        "a last evaluation off the clock",
        _stop_early,
        "log.order",
        at=(keys.EVAL_START, -1),
    ),
    _log(
        "a block before the clock",
        lambda bodies: _move(bodies, keys.BLOCK_START, 0, keys.INIT_START),
        "log.order",
        "log.intervals",
        at=(keys.BLOCK_START, 0),
    ),
    _fields("run_stop before run_start", keys.RUN_STOP, 0, "log.time", "run.clocks", time_ms=1),
    _log(
        "run_start 1000 s later than its place",
        lambda bodies: change(
            bodies,
            keys.RUN_START,
            time_ms=json.loads(bodies[place(bodies, keys.RUN_START)])["time_ms"] + 1_000_000,
        ),
        "log.time",
        "log.initialisation",
        "run.clocks",
        at=(keys.BLOCK_START, 0),
    ),
    _log(
        "a clock set back by 1 ms",
        lambda bodies: shift(bodies, place(bodies, keys.EVAL_STOP, 3), -1),
        "log.time",
        at=(keys.EVAL_STOP, 3),
    ),
    _log(
        "caches cleared five hours before",
        lambda bodies: shift(bodies, place(bodies, keys.INIT_START), 18_000_000),
        "log.initialisation",
        at=(keys.INIT_START, 0),
    ),
    _log(
        "26 s between initialisation and run",
        lambda bodies: shift(bodies, place(bodies, keys.RUN_START), 26_000),
        "log.initialisation",
        at=(keys.RUN_START, 0),
    ),
    _log(
        "initialisation over its limit",
        lambda bodies: shift(bodies, place(bodies, keys.INIT_STOP), 200_000),
        "log.initialisation",
        at=(keys.INIT_STOP, 0),
    ),
    _log(
        "NaN as quality",
        lambda bodies: _raw(bodies, keys.EVAL_ACCURACY, -1, "NaN"),
        "log.line",
        "run.target",
        "run.rescoring",
        at=(keys.EVAL_ACCURACY, -1),
    ),
    _log(
        "a line that is a list",
        lambda bodies: bodies.insert(place(bodies, keys.RUN_STOP), '["a"}'),
        "log.line",
    ),
    # What the run did.
    _value("another version of the task", keys.TASK, {"version": 9}, "run.task", "run.manifest"),
    _fields("epoch -3", keys.EVAL_ACCURACY, 4, "run.cadence", metadata=_epoch(-3)),
    _fields("an epoch in words", keys.EVAL_ACCURACY, 4, "run.cadence", metadata=_epoch("five")),
    _fields("no epoch", keys.EVAL_ACCURACY, 0, "run.cadence", metadata={}),
    _log("an evaluation left out", _without_evaluation, "run.cadence", at=(keys.EVAL_ACCURACY, 2)),
    _log(
        "all evaluations but the last left out",
        _only_last_evaluation,
        "run.cadence",
        at=(keys.EVAL_ACCURACY, 0),
    ),
    _log(
        "giving up before target and limit",
        _give_up,
        "run.cadence",
        "run.manifest",
        "run.rescoring",
        at=(keys.RUN_STOP, 0),
    ),
    _log("a stop one evaluation late", _stop_late, "run.target", at=(keys.EVAL_ACCURACY, -1)),
    _fields(
        "success without the target",
        keys.EVAL_ACCURACY,
        -1,
        "run.target",
        at=(keys.RUN_STOP, 0),
        value=0.9795,
    ),  # fmt: skip
    _log(
        "the target only in the first evaluation",
        lambda bodies: (
            change(bodies, keys.EVAL_ACCURACY, 0, value=0.982),
            change(bodies, keys.EVAL_ACCURACY, -1, value=0.1),
        )[0],
        "run.target",
        "run.rescoring",
        at=(keys.EVAL_ACCURACY, -1),
    ),
    _fields(
        "more than all samples right",
        keys.EVAL_ACCURACY,
        -1,
        "run.target",
        "run.rescoring",
        value=1.5,
    ),  # fmt: skip
    _fields(
        "a quality in words", keys.EVAL_ACCURACY, -1, "run.target", "run.rescoring", value="0.982"
    ),
    _fields("true as quality", keys.EVAL_ACCURACY, 3, "run.target", value=True),
    _fields(
        "aborted at the target",
        keys.RUN_STOP,
        0,
        "run.target",
        "run.cadence",
        "run.manifest",
        metadata={"status": "aborted"},
    ),  # fmt: skip
    _fields("no status", keys.RUN_STOP, 0, "run.target", "run.manifest", metadata={}),
    _log(
        "another momentum under both names",
        _hyperparameter_under_both_names,
        "run.hyperparameters",
        "result.configuration",
        at=(keys.HYPERPARAMETERS, 0),
    ),
    _value("momentum .5", keys.OPT_MOMENTUM, 0.5, "run.hyperparameters"),
    _value("batch x 7", keys.GLOBAL_BATCH_SIZE, 224, "run.hyperparameters", "result.configuration"),
    _value("learning rate 123456", keys.OPT_BASE_LEARNING_RATE, 123456, "run.hyperparameters"),
    _value("evaluation of one sample", keys.EVAL_SAMPLES, 1, "run.hyperparameters"),
    _value("training samples in words", keys.TRAIN_SAMPLES, "x", "run.hyperparameters"),
    _log(
        "a learning rate beyond its bound",
        lambda bodies: (
            _hyperparameter("optimizer.lr", 0.1005)(bodies),
            change(bodies, keys.OPT_BASE_LEARNING_RATE, value=0.1005),
        )[0],
        "run.hyperparameters",
        "result.configuration",
        at=(keys.HYPERPARAMETERS, 0),
    ),
    _log(
        "hyperparameters of no kind",
        lambda bodies: change(bodies, keys.HYPERPARAMETERS, value=[1]),
        "run.hyperparameters",
        "result.configuration",
        at=(keys.GLOBAL_BATCH_SIZE, 0),
    ),
    # The manifest, and the harness's own evidence.
    _file(
        "no manifest",
        lambda package: (package.folder / "result_2.json").unlink(),
        "run.manifest",
        "result.configuration",
    ),
    _file(
        "a manifest that is no JSON",
        lambda package: (package.folder / "result_2.json").write_text("{") and None,
        "result.manifest",
        "run.manifest",
        "result.configuration",
    ),
    _manifest("another seed", "run.manifest", seed=7),
    _manifest("another plan", "run.manifest", plan="dp=4"),
    _manifest("another attempt", "run.manifest", attempt=3),
    _manifest("another outcome", "run.manifest", outcome="refused"),
    _manifest("another organisation", "run.manifest", org="other"),
    _manifest("another platform", "run.manifest", platform="other"),
    _manifest("another division", "run.manifest", division="open"),
    _manifest("other data", "run.manifest", data_sha256="0" * 64),
    _nested("an easier target", "task", "run.manifest", target=0.5),
    _nested("fewer runs", "task", "run.manifest", runs=3),
    _nested("another hash of the log", "log", "run.manifest", sha256="0" * 64),
    _nested("other code", "code", "result.configuration", suite_sha256="0" * 64),
    _nested("another trainer", "code", "result.configuration", trainer_sha256="0" * 64),
    _nested("another system", "system", "result.system", sha256="0" * 64),
    _nested("a supervisor's clock 2 s off", "supervisor", "run.clocks", run_s=14.0),
    _nested("no supervisor's clock", "supervisor", "run.clocks", run_s=None),
    _nested("a quality that did not come back", "rescoring", "run.rescoring", quality=0.95),
    _manifest("no scoring again", "run.rescoring", rescoring=None),
    _log(
        "a log that says open",
        lambda bodies: change(bodies, keys.SUBMISSION_DIVISION, value="open"),
        "run.manifest",
        "result.configuration",
    ),
    _file("a log edited after sealing", _edit_byte, "log.chain", "run.manifest"),
    _file("text added after sealing", _append_text, "run.manifest"),
    _file(
        "a log cut off after sealing",
        _cut_off,
        "run.manifest",
        "log.keys",
        "log.intervals",
        "result.run_count",
    ),  # fmt: skip
    _file("a log without hashes", _strip_hashes, "log.chain", "run.manifest"),
    # The runs together.
    _file("four of five runs", lambda package: _remove(package, 4), "result.run_count"),
    _file(
        "an attempt left out",
        lambda package: _remove(package, RUN),
        "result.attempts",
        "result.run_count",
    ),  # fmt: skip
    _file("an attempt renumbered", _renumber, "run.manifest", "result.run_count"),
    _file("two misses", _miss_two, "result.missed"),
    _file("a seed used twice", _same_seed, "result.seeds"),
    _file("another plan in one run", _other_plan, "result.configuration"),
    _file("an attempt that was interrupted", _interrupt, "result.ended", "result.run_count"),
    _file("a folder of another benchmark", _rename_folder, "result.place"),
    _file("a folder of another system", _rename_system, "result.place"),
    _file("a folder of another organisation", _rename_org, "result.place"),
    _file(
        "a system file that was edited",
        lambda package: package.system_file.write_text('{"framework": "x"}') and None,
        "result.system",
    ),
    _file("no system file", lambda package: package.system_file.unlink(), "result.system"),
    _log(
        "a log of an unknown benchmark",
        lambda bodies: change(bodies, keys.SUBMISSION_BENCHMARK, value="bert/huge"),
        "run.benchmark",
        "result.configuration",
        "result.place",
    ),
]
