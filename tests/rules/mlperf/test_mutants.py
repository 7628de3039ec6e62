"""Mutated logs of all rounds and benchmarks have the verdict of the official checker."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from hybridperf.findings import Severity
from hybridperf.log.reader import read_published_log
from hybridperf.rules import check
from hybridperf.rules.mlperf.as_published import check_as_published
from hybridperf.rules.mlperf.ruleset import load_ruleset
from tests.rules.mlperf.known_mutants import known_mutants
from tests.rules.mlperf.mutants import Line, mutate, read_lines, write_lines
from tests.rules.mlperf.official import CHECKOUT, official_verdict
from tests.rules.mlperf.published_rounds import EDITIONS, TIERS, official_verdicts, published_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_REGISTERED = check  # imported to register the rules that rulesets name
LARGEST_BYTES = 300_000  #: of logs to mutate
SEED, MUTANTS = 2026, 5000
#: what the checker of today asks otherwise than it did in the round, as its rule files were edited:
#: the key of BERT's epsilon, and lists of tensors that were only warned of
EDITED = {("2.1", "bert"), *(("1.1", each) for each in ("bert", "dlrm", "maskrcnn", "minigo",
          "resnet", "rnnt", "ssd", "unet3d"))}  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], list[Path]]]:
    """Return small valid logs by round and benchmark."""
    with published_rounds(tmp_path_factory) as rounds:
        found: dict[tuple[str, str], list[Path]] = {}
        for edition in EDITIONS:
            folder = rounds / f"training_results_v{edition}"
            for name, valid in official_verdicts(edition).items():
                path = folder / name
                if valid and path.exists() and path.stat().st_size <= LARGEST_BYTES:
                    found.setdefault((edition, path.parent.name), []).append(path)
        yield found


def _verdict(path: Path, edition: str) -> tuple[bool, list[str]]:
    findings = check_as_published(
        read_published_log(path, "log"), load_ruleset(f"mlperf-training-{edition}.0")
    )
    errors = [each.sentence for each in findings if each.severity is Severity.ERROR]
    return not errors, errors


@pytest.mark.parametrize("edition", TIERS)
def test_mutants_have_the_verdict_that_follows_from_how_they_are_made(
    logs: dict[tuple[str, str], list[Path]], tmp_path: Path, edition: str
) -> None:
    ruleset = load_ruleset(f"mlperf-training-{edition}.0")
    benchmarks = sorted({benchmark for each, benchmark in logs if each == edition})
    assert len(benchmarks) >= 5
    path = tmp_path / "log.txt"
    judged = 0
    for benchmark in benchmarks:
        log = min(logs[edition, benchmark], key=lambda each: each.stat().st_size)
        lines = read_lines(log.read_text(encoding="latin-1"))
        demands = ruleset.demands_on(read_published_log(log, "log"))
        for name, mutant, valid in known_mutants(lines, demands, ruleset.name):
            path.write_bytes(write_lines(mutant))
            ours, errors = _verdict(path, edition)
            assert ours is valid, (benchmark, name, log.parts[-5:], errors)
            judged += 1
    assert judged > 40 * len(benchmarks)


def is_refused_with_a_reason(lines: list[Line]) -> bool:
    """Tell whether the official checker takes what is refused here: docs/rules.md, 5."""
    return any(_has_no_time(line) or _has_no_object(line) for line in lines)


def _has_no_time(line: Line) -> bool:
    time_ms = line.fields.get("time_ms", 0)
    return type(time_ms) not in (int, float) or not abs(time_ms) < 10**15


def _has_no_object(line: Line) -> bool:
    return isinstance(line.fields.get("metadata"), list | str)


@pytest.mark.skipif(
    not CHECKOUT, reason="HYBRIDPERF_MLPERF_LOGGING names no checkout of the official checker"
)
@pytest.mark.parametrize("part", range(10))
def test_mutants_have_the_verdict_of_the_official_checker(
    logs: dict[tuple[str, str], list[Path]], tmp_path: Path, part: int
) -> None:
    chosen = random.Random(SEED + part)
    cells = [cell for cell in sorted(logs) if cell not in EDITED]
    path = tmp_path / "log.txt"
    differing = []
    for number in range(MUTANTS // 10):
        edition, benchmark = cells[(part + 10 * number) % len(cells)]
        log = chosen.choice(logs[edition, benchmark])
        name, lines = mutate(read_lines(log.read_text(encoding="latin-1")), chosen)
        path.write_bytes(write_lines(lines))
        official = official_verdict(path, f"{edition}.0")
        ours, errors = _verdict(path, edition)
        # Where the checker ended with an exception, it gave no verdict, and none is valid.
        same = ours == (official == "valid")
        if not same and not (official == "valid" and is_refused_with_a_reason(lines)):
            differing.append((number, edition, benchmark, name, official, errors[:2]))
    assert differing == []


def test_what_is_refused_with_a_reason_is_refused(
    logs: dict[tuple[str, str], list[Path]], tmp_path: Path
) -> None:
    log = min(logs["5.1", "llama2_70b_lora"], key=lambda each: each.stat().st_size)
    text = log.read_text(encoding="latin-1")
    path = tmp_path / "log.txt"
    last = read_lines(text)[-1].text()
    for wrong in ('"12"', "true", "NaN", "Infinity", "1e999", "9" * 400, "null"):
        path.write_text(re.sub(r'"time_ms": ?\d+', f'"time_ms": {wrong}', last))
        path.write_bytes(text.encode("latin-1") + path.read_bytes())

        valid, errors = _verdict(path, "5.1")

        assert not valid, wrong
        assert "which is not a time" in errors[0] or "out of range" in errors[0]
