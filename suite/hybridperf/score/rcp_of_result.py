"""Test the convergence of a result, or take the factor that its round published."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.rounds import scaling_factor
from hybridperf.score.convergence import amount, count_key
from hybridperf.score.rcp import Verdict, judge
from hybridperf.score.rcp_points import RcpTest
from hybridperf.score.rcp_set import points_of, task_references
from hybridperf.score.run_score import stopped_well
from hybridperf.score.score import runs_of_result
from hybridperf.tasks.mlperf import mlperf_benchmark, official_tool
from hybridperf.untrusted import COUNT_CAP, reason, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result
    from hybridperf.score.rcp import Mode
    from hybridperf.score.rcp_points import Reference
    from hybridperf.score.rcp_set import RcpSet, RcpSets
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore
    from hybridperf.tasks.mlperf import OfficialTool

__all__ = ["agreed_batch", "converged_by_tool", "convergence_of", "published_factor"]


def convergence_of(
    result: Result,
    score: ResultScore,
    division: str,
    key: str,
    references: RcpSet | None,
    mode: Mode,
) -> Verdict:
    """Test how fast ``result`` converged; ``key`` counts its progress.

    By the rules, the runs that make the result are tested, and those of them that are invalid or
    missed the target are the slowest. In mode ``compat``, MLPerf's results are tested like the
    official tool of their round: all logs, by the status that they state.
    """
    if division == "open":
        return Verdict(None, "the open division is not tested", factor=1.0)
    benchmark = score.benchmark
    facts, runs = mlperf_benchmark(benchmark, score.edition), runs_of_result(benchmark)
    points = (references or {}).get(benchmark) or task_references(benchmark)
    if not points and references is None:
        return Verdict(None, "no reference points; name their folder with --rcp-set")
    if not points or runs is None:
        return Verdict(None, f"no reference points for {benchmark!r:.80}")
    tool = official_tool(score.edition) if mode == "compat" else None
    test = RcpTest(runs, facts.drops, facts.grace, tool)
    logs = [sealed.log for sealed in result.runs]
    if tool is not None and not score.plan:
        return _by_tool(points, logs, benchmark, key, score.edition, test)
    window = [(run, log) for run, log in zip(score.runs, logs, strict=True) if run.in_window]
    batch = agreed_batch([log for run, log in window if run.completion == "reached"])
    amounts = [_amount(run, log, score, key) for run, log in window]
    return _judged(points, batch, amounts, test)


def converged_by_tool(
    logs: Sequence[Log], benchmark: str, edition: str, references: RcpSets
) -> Verdict:
    """Test how fast the runs of ``logs`` converged, like the official tool of round ``edition``."""
    facts = mlperf_benchmark(benchmark, edition)
    points = points_of(references, edition).get(benchmark)
    if not points or facts.runs is None:
        return Verdict(None, f"no reference points for {benchmark!r:.80}")
    test = RcpTest(facts.runs, facts.drops, facts.grace, official_tool(edition))
    return _by_tool(points, logs, benchmark, count_key(logs, benchmark, edition), edition, test)


def _by_tool(
    points: Sequence[Reference],
    logs: Sequence[Log],
    benchmark: str,
    key: str,
    edition: str,
    test: RcpTest,
) -> Verdict:
    tool = test.tool
    assert tool is not None
    batch = agreed_batch(logs[-1:] if tool.batch_size_of == "last" else logs)
    tested = [log for log in logs if _is_tested(log, tool)]
    amounts = [
        amount(log, benchmark, key, edition) if stopped_well(log) else math.inf for log in tested
    ]
    return _judged(points, batch, amounts, test)


def _judged(
    points: Sequence[Reference],
    batch: int | None,
    amounts: Sequence[float | None],
    test: RcpTest,
) -> Verdict:
    known = [each for each in amounts if each is not None]
    if batch is None:
        return Verdict(None, "the runs log no global_batch_size, or differing ones")
    if len(known) < len(amounts):
        return Verdict(None, "a run does not log the epochs or samples it trained")
    return judge(points, batch, known, test)


def published_factor(result: Result) -> Verdict:
    """Return the factor that MLPerf's tools wrote to ``scaling.json``; 1 if there is none."""
    try:
        factor = scaling_factor(result.package)
    except (OSError, ValueError) as error:
        return Verdict(None, f"scaling.json: {reason(error)}")
    if factor is None:
        return Verdict(None, "published without scaling.json, so with 1", factor=1.0)
    return Verdict(None, "as published in scaling.json", factor=factor)


def agreed_batch(logs: Sequence[Log]) -> int | None:
    """Return the global batch size that all ``logs`` state; None if they differ or state none."""
    batches = {whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP) for log in logs}
    return batches.pop() if len(batches) == 1 else None


def _amount(run: RunScore, log: Log, score: ResultScore, key: str) -> float | None:
    if run.completion != "reached":
        return math.inf
    if score.plan:
        return run.samples_to_target
    return amount(log, score.benchmark, key, score.edition)


def _is_tested(log: Log, tool: OfficialTool) -> bool:
    return tool.without_run_stop == "missed" or log.first(keys.RUN_STOP) is not None
