"""Compare a re-run with its original: quality, samples, hardware and time."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Final

from hybridperf.rules.evidence import Attestation, Subject, subject_of
from hybridperf.score.ranking import ALPHA
from hybridperf.score.statistics import estimate, welch
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from hybridperf.log.package import Result
    from hybridperf.score.official import Official

__all__ = ["HARDWARE", "attest"]

#: fields of a description that identify the hardware
HARDWARE: Final = (
    "number_of_nodes",
    "accelerators_per_node",
    "accelerator_model_name",
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
)


def attest(original: tuple[Result, Official], again: tuple[Result, Official]) -> Attestation:
    """Return the attestation by the organisation of the re-run ``again`` about ``original``.

    Raises:
        OSError: if one of them has no SHA256SUMS.
        ValueError: if that is not a regular file.
    """
    (first, first_score), (second, second_score) = original, again
    samples, p_value = _same_samples(first_score, second_score)
    interval, other = first_score.score.interval_s, second_score.score.interval_s
    subject: Subject = subject_of(first.package)
    return Attestation(
        format=1,
        by=second.package.org,
        subject=subject,
        runs=len(second_score.score.completed),
        commit=_commit(first),
        rerun_sums_sha256=subject_of(second.package).sums_sha256,
        quality=_reached_again(second, second_score),
        samples=samples,
        samples_p_value=p_value,
        like_hardware=_hardware(first) == _hardware(second) != {},
        time=interval is not None
        and other is not None
        and interval.low <= other.high
        and other.low <= interval.high,
        time_s=second_score.score.mean_s or 0.0 if other else 0.0,
    )


def _reached_again(result: Result, official: Official) -> bool:
    """Return whether all completed runs reached the target, by the harness's own count too."""
    target = official.score.target
    completed = {run.number for run in official.score.completed}
    return (
        target is not None
        and all(run.completion == "reached" for run in official.score.completed)
        and all(
            number(run.fact("rescoring", "quality"), target, 1) is not None
            for run in result.runs
            if run.number in completed
        )
    )


def _same_samples(one: Official, other: Official) -> tuple[bool, float | None]:
    first, second = (
        [float(run.samples_to_target) for run in each.score.compared if run.completion == "reached"]
        for each in (one, other)
    )
    if not first or not second:
        return False, None
    test = welch(estimate(first), estimate(second))
    if test is None:  # every run took the same number, or there is one run only
        return fmean(first) == fmean(second), None
    return test.p_value >= ALPHA, test.p_value


def _hardware(result: Result) -> dict[str, object]:
    system = result.system or {}
    return {field: system.get(field) for field in HARDWARE if system}


def _commit(result: Result) -> str:
    commit = result.runs[0].fact("code", "commit") if result.runs else None
    return commit if isinstance(commit, str) else ""
