"""Short logs of BERT and ResNet that every rule of mode strict accepts, and edits of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hybridperf.log.package import SealedRun
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import check_run
from hybridperf.rules.mlperf.ruleset import load_ruleset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hybridperf.findings import Finding

RULESET: Final = "mlperf-training-2.1.0"
Lines = list[dict[str, Any]]

_LAMB: Final = {
    "opt_base_learning_rate": 0.000425,
    "opt_epsilon": 1e-06,
    "opt_learning_rate_training_steps": 6700.0,
    "opt_learning_rate_warmup_steps": 0,
    "num_warmup_steps": 0,
    "start_warmup_step": -25.0,
    "opt_lamb_beta_1": 0.9,
    "opt_lamb_beta_2": 0.999,
    "opt_lamb_weight_decay_rate": 0.01,
}
_LARS: Final = {
    "opt_name": "lars",
    "lars_opt_base_learning_rate": 10.5,
    "lars_opt_end_learning_rate": 1e-4,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_learning_rate_decay_steps": 37,
    "lars_opt_learning_rate_warmup_epochs": 2,
    "lars_opt_momentum": 0.9,
    "lars_opt_weight_decay": 5e-5,
    "lars_epsilon": 0,
}
SGD: Final = {
    "opt_name": "sgd",
    "sgd_opt_base_learning_rate": 0.3,
    "sgd_opt_end_learning_rate": 1e-4,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 37,
    "sgd_opt_weight_decay": 5e-5,
    "sgd_opt_momentum": 0.9,
    "opt_learning_rate_warmup_epochs": 2,
    "model_bn_span": 32,
}


def bert() -> Lines:
    """Return a log of BERT with batches of 448, evaluated each 335 steps."""
    evaluations = zip((150_080, 300_160, 450_240, 600_320), (0.3, 0.5, 0.7, 0.721), strict=True)
    return _log("bert", {"global_batch_size": 448, **_LAMB}, 10_000, 600_320, evaluations)


def resnet(optimizer: dict[str, Any] = _LARS) -> Lines:
    """Return a log of ResNet, evaluated after epochs 3, 7 and 11."""
    evaluations = zip((3, 7, 11), (0.3, 0.7, 0.76), strict=True)
    values = {"global_batch_size": 3264, **optimizer}
    return _log("resnet", values, 50_000, 1_281_167, evaluations)


def tensors_of(benchmark: str) -> list[str]:
    """Return the tensors whose initialisation logs of ``benchmark`` state."""
    (tensors,) = (
        demand.covers["tensor"]
        for group in load_ruleset(RULESET).groups
        for demand in group.demands.values()
        if demand.covers and group.when["submission_benchmark"] == benchmark
    )
    return sorted(tensors)


def _log(
    benchmark: str,
    hyperparameters: dict[str, Any],
    eval_samples: int,
    train_samples: int,
    evaluations: Iterable[tuple[int, float]],
) -> Lines:
    tensors = tensors_of(benchmark)
    lines = [
        line("submission_benchmark", benchmark),
        line("submission_org", "o"),
        line("submission_division", "closed"),
        line("submission_status", "onprem"),
        line("submission_platform", "p"),
        line("cache_clear", True),
        line("init_start"),
        *(line(key, value) for key, value in hyperparameters.items()),
        line("gradient_accumulation_steps", 1),
        line("seed", 4711),
        *(line("weights_initialization", tensor=tensor) for tensor in tensors),
        line("train_samples", train_samples),
        line("eval_samples", eval_samples),
        line("init_stop"),
        line("run_start"),
    ]
    before = 0
    for point, accuracy in evaluations:
        lines += [
            line("block_start", first_epoch_num=before + 1, epoch_count=point - before),
            line("eval_start", epoch_num=point),
            line("eval_accuracy", accuracy, epoch_num=point),
            line("eval_stop", epoch_num=point),
            line("block_stop", first_epoch_num=before + 1),
        ]
        before = point
    lines.append(line("run_stop", status="success"))
    for second, each in enumerate(lines):
        each["time_ms"] = 1_650_000_000_000 + 500 * second
    return lines


def line(key: str, value: object = None, **metadata: object) -> dict[str, Any]:
    _, _, edge = key.rpartition("_")
    event_type = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(edge, "POINT_IN_TIME")
    return {
        "namespace": "",
        "time_ms": 0,
        "event_type": event_type,
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(f":::MLLOG {json.dumps(each)}\n" for each in lines))
    return path


def read_lines(path: Path) -> Lines:
    """Return the MLLOG lines of a published log, without what else stands in it."""
    payloads = (text.partition(":::MLLOG ")[2] for text in path.read_text("latin-1").splitlines())
    return [json.loads(payload) for payload in payloads if payload]


def findings_of(path: Path, lines: Lines) -> list[Finding]:
    log = read_published_log(write(path, lines), "log")
    return list(check_run(SealedRun(0, log, None), load_ruleset(RULESET)))


def where(lines: Lines, key: str, nth: int = 0) -> dict[str, Any]:
    return [each for each in lines if each["key"] == key][nth]


def place(lines: Lines, key: str, nth: int = 0) -> int:
    return lines.index(where(lines, key, nth))


def value(key: str, new: object, nth: int = 0) -> Callable[[Lines], object]:
    return lambda lines: where(lines, key, nth).update(value=new)


def time(key: str, by_ms: int, nth: int = 0) -> Callable[[Lines], object]:
    def edit(lines: Lines) -> None:
        where(lines, key, nth)["time_ms"] += by_ms

    return edit


def metadata(key: str, nth: int = 0, **facts: object) -> Callable[[Lines], object]:
    return lambda lines: where(lines, key, nth)["metadata"].update(facts)


def drop(key: str, *nths: int) -> Callable[[Lines], object]:
    def edit(lines: Lines) -> None:
        for each in [where(lines, key, nth) for nth in nths or (0,)]:
            lines.remove(each)

    return edit


def repeat(key: str) -> Callable[[Lines], object]:
    return lambda lines: lines.insert(place(lines, key), dict(where(lines, key)))


def move(key: str, before: str, nth: int = 0) -> Callable[[Lines], object]:
    """Move a line, with the time stamp of its new place."""

    def edit(lines: Lines) -> None:
        moved = lines.pop(place(lines, key, nth))
        index = place(lines, before)
        lines.insert(index, moved | {"time_ms": lines[index]["time_ms"]})

    return edit


def without_evaluations(*nths: int) -> Callable[[Lines], object]:
    def edit(lines: Lines) -> None:
        for key in ("eval_start", "eval_accuracy", "eval_stop"):
            drop(key, *nths)(lines)

    return edit
