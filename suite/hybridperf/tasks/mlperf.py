"""The catalogue of MLPerf Training's benchmarks and of its scoring tools."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.tasks.task import Task

__all__ = [
    "MlperfBenchmark",
    "OfficialTool",
    "Unit",
    "availability",
    "benchmark_title",
    "differences_from_bert",
    "lineage",
    "mlperf_benchmark",
    "official_tool",
    "software",
]

_FILE: Final = Path(__file__).with_suffix(".toml")
_OTHER: Final = "other"  #: row for benchmarks that are not listed
_MOST_CHARACTERS: Final = 120  #: longest text of a system description
_BERT_QUALITY: Final = 0.34085  #: quality of the checkpoint that runs of MLPerf's BERT begin from

#: unit of progress; batches: epochs that end with the last whole batch
Unit = Literal["samples", "epochs", "batches", "steps"]


@dataclass(frozen=True, slots=True)
class Rename:
    """The later name of a benchmark."""

    to: str
    since: str  #: first round with the later name


@dataclass(frozen=True, slots=True)
class MlperfBenchmark:
    """The facts about a benchmark of MLPerf Training that scores need."""

    drops: int  #: runs that the olympic mean drops at each end
    title: str = ""  #: name that people read; "" if it is the name in logs
    runs: int | None = None  #: number of runs of a result; None if unknown
    #: unit of progress by metadata name of an evaluation, the preferred name first
    progress: dict[str, Unit] = field(
        default_factory=lambda: {"epoch_num": "batches", "samples_count": "samples"}
    )
    total: str = ""  #: log key of the final progress, for logs whose evaluations do not advance
    epoch_samples: int | None = None  #: samples of an epoch; None: train_samples of the log
    first_epoch: int = 0  #: number of the first epoch of training
    tokens_per_sample: int = 1  #: tokens of a sample, if progress counts tokens
    metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)  #: bounds by metric name
    grace: float = 0.0  #: tolerance of the limit of a reference point
    renamed: Rename | None = None

    @property
    def epoch_num(self) -> Unit:
        """Return the unit of an evaluation's epoch_num."""
        return self.progress.get("epoch_num", "batches")


@dataclass(frozen=True, slots=True)
class OfficialTool:
    """Behaviour of a round's official tool in the test against reference points."""

    pruned_by: Literal["nothing", "limit", "mean"]
    deviation_of: Literal["scored", "all"]
    batch_size_of: Literal["last", "all"]
    without_run_stop: Literal["left out", "missed"]


def mlperf_benchmark(name: str, edition: str = "") -> MlperfBenchmark:
    """Return the facts about the benchmark ``name``, also if it is not listed.

    ``edition`` is the round, such as ``2.1``; without it, changes of later rounds do not count.
    """
    catalogue = _catalogue(edition)
    return catalogue.get(name, catalogue[_OTHER])


def official_tool(edition: str = "") -> OfficialTool:
    """Return the behaviour of the official tool of round ``edition``; without it, of the newest."""
    facts: dict[str, object] = {}
    for row in _table()["tool"]:
        if not edition or not facts or _has_reached(edition, row["since"]):
            facts |= _without_since(row)
    return build(OfficialTool, facts, path=_FILE.name, at="tool")


def lineage(name: str, edition: str) -> str:
    """Return the last name that the benchmark ``name`` of round ``edition`` had in any round.

    Results of two rounds measure the same if this name is the same for both.
    """
    renamed = mlperf_benchmark(name, edition).renamed
    return renamed.to if renamed is not None and _has_reached(edition, renamed.since) else name


def benchmark_title(name: str, edition: str = "") -> str:
    """Return the name by which people know the benchmark ``name`` of logs of round ``edition``."""
    row = _catalogue(edition).get(name)
    return row.title or name if row else name


def availability(status: object) -> str:
    """Return the availability of a system from its description's status; "" if unknown."""
    if not isinstance(status, str):
        return ""
    words = re.sub(r"[^a-z0-9]+", " ", status[:_MOST_CHARACTERS].casefold()).split()
    text = " ".join(word for word in words if word != "available")
    return str(_table()["availability"].get(text, ""))


def software(system: Mapping[str, object]) -> str:
    """Return the framework and the stack below it, as a system description states them."""
    stack = system.get("other_software_stack")
    if isinstance(stack, list) and len(stack) == 1:
        stack = stack[0]
    if isinstance(stack, dict):
        versions = ((name, _words(stack.get(key))) for key, name in _table()["stack"].items())
        stack = ", ".join(f"{name} {version}" for name, version in versions if version)
    return "; ".join(filter(None, (_words(system.get("framework")), _words(stack))))


def _words(stated: object) -> str:
    return stated.strip()[:_MOST_CHARACTERS] if isinstance(stated, str) else ""


def _has_reached(edition: str, since: str) -> bool:
    return bool(edition) and _number(edition) >= _number(since)


def _number(edition: str) -> tuple[int, ...]:
    return tuple(map(int, edition.split(".")))


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@functools.cache
def _catalogue(edition: str = "") -> Mapping[str, MlperfBenchmark]:
    catalogue = {}
    for name, row in _table()["benchmark"].items():
        facts, changes = _without_since(row), row.get("since", {})
        for since in sorted(changes, key=_number):
            if _has_reached(edition, since):
                facts |= changes[since]
        catalogue[name] = build(MlperfBenchmark, facts, path=_FILE.name, at=name)
    return catalogue


def _without_since(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != "since"}


def differences_from_bert(task: Task) -> list[tuple[str, str, str]]:
    """Return (what, MLPerf's, the task's) wherever ``task`` differs from MLPerf's BERT.

    Hyperparameters are left out, which MLPerf's closed division may choose.

    Source: mlcommons/training, retired_benchmarks/bert; rules of MLPerf Training v2.1.
    """
    data, text, schedule = task.data, task.data.text, task.evaluation
    assert text is not None, "BERT's tasks read text"
    tied = task.parallel.tied
    every = schedule.every_samples or schedule.every_epochs * data.train_samples
    initial = "random"
    if task.initial is not None:
        quality = task.initial.quality
        initial = "" if quality == _BERT_QUALITY else f"given, of quality {quality:g}"
    return [
        row
        for row in (
            (
                "initial weights",
                f"a checkpoint of quality {_BERT_QUALITY}; its optimizer's state is not used",
                initial,
            ),
            (
                "decoder",
                "shares the weights of the word embedding",
                "" if tied else "has weights of its own",
            ),
            ("text", "English Wikipedia of 2020-01-01", data.source),
            (
                "samples",
                "pairs of whole sentences, up to 512 tokens",
                f"pairs of segments that end anywhere, {text.tokens} tokens"
                if data.filled
                else f"pairs of segments, up to {text.tokens} tokens",
            ),
            ("padding", "about half of all positions", "none" if data.filled else ""),
            (
                "tokens to predict",
                "at most 76 of a sample",
                f"{text.masked} of every sample" if data.filled else "",
            ),
            (
                "masks",
                "10 for each pair of sentences, drawn before training",
                "drawn again in every epoch",
            ),
            (
                "evaluation samples",
                "10,000, picked by a script",
                f"{data.eval_samples:,}: {data.split}",
            ),
            (
                "evaluations",
                "every 150,000 samples with a batch of up to 2,048, less often with larger ones",
                f"every {every:,} samples",
            ),
            (
                "learning rate",
                "decays from step 0 on: it jumps at the end of the warm-up",
                ""
                if task.optimizer.decay_from == "start"
                else "decays from the end of the warm-up on",
            ),
            ("runs of a result", f"{mlperf_benchmark('bert').runs}", f"{task.runs.count}"),
        )
        if row[2]
    ]
