"""Evaluations of every benchmark whose rules state how often are held to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from hybridperf.log.package import SealedRun
from hybridperf.log.reader import read_published_log
from hybridperf.rules.check import check_run
from hybridperf.rules.mlperf.ruleset import load_ruleset, parse_ruleset
from tests.rules.mlperf.strict_logs import line, write

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.findings import Finding

CRITEO = 4_195_197_692
ERROR, WARNING = Severity.ERROR, Severity.WARNING

#: round, benchmark, batch, what counts, the first evaluation and the distance of the next ones,
#: as the sentences of the rules give them for this batch
DUE = [
    ("5.1", "llama2_70b_lora", 8, "samples_count", 4 * 384, 384),
    ("4.1", "llama2_70b_lora", 128, "samples_count", 19 * 384, 384),
    ("5.0", "llama31_405b", 1280, "samples_count", 46_080, 46_080),
    ("5.1", "llama31_8b", 32, "samples_count", 12_288, 12_288),
    ("5.1", "flux1", 512, "samples_count", 262_144, 262_144),
    ("4.0", "gpt3", 2304, "epoch_num", 25_344 * 2048, 25_344 * 2048),
    ("2.1", "maskrcnn", 256, "epoch_num", 1, 1),
    ("3.0", "rnnt", 1024, "epoch_num", 1, 1),
    ("2.1", "ssd", 256, "epoch_num", 1, 1),
    ("5.0", "retinanet", 256, "epoch_num", 1, 1),
    ("5.1", "rgat", 2048, "epoch_num", 0.05, 0.05),
    ("4.1", "gnn", 16_384, "epoch_num", 0.05, 0.05),
    ("2.1", "unet3d", 56, "epoch_num", 1000, 20),
    ("4.0", "unet3d", 56, "epoch_num", 168_000, 3360),
    ("5.0", "dlrm_dcnv2", 60_000, "epoch_num", 3495 * 60_000 / CRITEO, 3495 * 60_000 / CRITEO),
]


def _found(path: Path, edition: str, benchmark: str, facts: dict[str, object]) -> list[Finding]:
    points = facts.pop("points")
    assert isinstance(points, list)
    by = str(facts.pop("by"))
    lines = [
        line("submission_benchmark", benchmark),
        line("submission_division", facts.pop("division", "closed")),
        *(line(key, value) for key, value in facts.items()),
        *(line("eval_accuracy", 0.1, **{by: point}) for point in points),
    ]
    log = read_published_log(write(path, lines), "log")
    found = check_run(SealedRun(0, log, None), load_ruleset(f"mlperf-training-{edition}.0"))
    return [each for each in found if each.rule == "mlperf.cadence"]


@pytest.mark.parametrize(("edition", "name", "batch", "by", "first", "every"), DUE)
def test_evaluations_that_are_due_are_missed(
    tmp_path: Path,
    edition: str,
    name: str,
    batch: int,
    by: str,
    first: float,
    every: float,
) -> None:
    points = [first + every * nth for nth in range(12)]

    def found(points: list[float], division: str = "closed") -> list[Severity]:
        facts = {"points": points, "by": by, "global_batch_size": batch, "division": division}
        here = _found(tmp_path / "log", edition, name, facts)
        assert all(each.sentence.isprintable() for each in here)
        return [each.severity for each in here]

    assert found(points) == []
    assert found(points[1:]) == [ERROR]  # the first one is left out
    assert found(points[:5] + points[7:]) == [ERROR]
    assert found(points[:1] + points[3:], "open") == [WARNING]
    more = [*points[:6], points[5] + every / 4, *points[6:]]
    assert found(more) in ([WARNING], [])  # where a quarter is less than a batch
    assert found([math.nan, math.inf]) == []  # another rule's
    assert found([]) == []


def test_u_net_may_count_epochs_without_padding(tmp_path: Path) -> None:
    """With batches of 80, 240 samples an epoch, it is due at 700 and every 14; else 1000 and 20."""

    def found(first: int, every: int) -> list[Severity]:
        facts: dict[str, object] = {
            "points": [first + every * nth for nth in range(9)],
            "by": "epoch_num",
            "global_batch_size": 80,
        }
        return [each.severity for each in _found(tmp_path / "log", "2.1", "unet3d", facts)]

    assert found(700, 14) == []
    assert found(1000, 20) == [WARNING]
    assert found(700, 21) == [ERROR]
    assert found(1001, 14) == [ERROR]


def test_a_cadence_that_cannot_be_computed_is_refused() -> None:
    head = 'name = "x"\nsource = "y"\nextends = "mlperf-training-2.1.0"\n[benchmarks]\n'
    head += 'closed = ["bert"]\nopen = []\n[benchmark.bert.cadence]\nunit = "samples"\n'
    for every in ("batch * steps", "__import__('os')", "batch ** 9"):
        with pytest.raises(ValueError, match="formula"):
            parse_ruleset(f'{head}every = "{every}"\n')
    for every, batch in (("1 / (batch - 4)", 4), ("0 * batch", 4), ("batch", 10**400)):
        ruleset = parse_ruleset(f'{head}every = "{every}"\n')
        cadence = ruleset.benchmarks["bert"].cadence
        assert cadence is not None
        assert cadence.due(batch) is None
