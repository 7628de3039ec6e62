"""Compute the official score: the olympic mean scaled by the RCP normalisation factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.rules.evidence import Trust
from hybridperf.score.convergence import agreed_batch, count_key
from hybridperf.score.rcp import convergence_of, published_factor
from hybridperf.score.run_score import known_mean
from hybridperf.score.score import score_result
from hybridperf.score.statistics import fewest_runs, too_many_missed
from hybridperf.score.validity import Judgement
from hybridperf.system.catalog import accelerator_count, find_accelerator
from hybridperf.tasks.mlperf import availability, software

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.log.package import Result
    from hybridperf.score.rcp import Mode, RcpSet, RcpVerdict
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore
    from hybridperf.score.statistics import Interval
    from hybridperf.score.validity import Validity

__all__ = [
    "Cause",
    "Context",
    "Efficiency",
    "Improvement",
    "Official",
    "Place",
    "Verdict",
    "Why",
    "official_of",
    "official_score",
]

#: hardware: another accelerator; software: the same one trains a sample in less time, or in more;
#: scale: more accelerators, or fewer; convergence: fewer samples, or more
Cause = Literal["hardware", "software", "scale", "convergence"]
Verdict = Literal["faster", "slower", "tie", "undecided"]
_MOST_CHARACTERS = 120  #: limit on the length of a name in a system description
#: judgements that leave no time to speak of, and the word for the lack of a score
_WITHOUT_TIME = {
    Judgement.NOT_JUDGED: "not judged",
    Judgement.BROKEN: "invalid",
    Judgement.DISPUTED: "disputed",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The range of leaderboard places of a result, counted from 1."""

    best: int
    worst: int

    def __str__(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"  # noqa: RUF001 - a range takes an en dash


@dataclass(frozen=True, slots=True)
class Why:
    """The ratio of mean times, factored into samples to target and seconds per sample; B over A."""

    samples_ratio: float
    seconds_per_sample_ratio: float  #: total time over total samples
    accelerators_ratio: float | None = None
    #: seconds_per_sample_ratio times accelerators_ratio
    accelerator_seconds_per_sample_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Efficiency of scaling from A's accelerators to B's; 1 is linear."""

    accelerators: tuple[int, int]
    #: end-to-end samples per second and accelerator, mean over the scored runs; B over A
    by_throughput: float | None
    by_time_to_train: float | None  #: accelerators times olympic mean time; A over B


@dataclass(frozen=True, slots=True)
class Improvement:
    """What changed between a submitter's best results of two rounds; ratios are new over old."""

    since: str  #: the round of the older result
    system: str  #: system of the older result
    accelerator: str  #: accelerator of the older result
    verdict: Verdict
    ratio: float  #: ratio of the mean times
    interval: Interval | None  #: 95 % confidence interval of the ratio
    why: Why
    cause: Cause | None  #: largest contribution to a faster or slower result


@dataclass(frozen=True, slots=True)
class Context:
    """Comparisons of a result with other results; None where there is no other result."""

    smallest: str = ""  #: name of the system that the efficiency is relative to
    efficiency: Efficiency | None = None
    improvement: Improvement | None = None


@dataclass(frozen=True, slots=True)
class Official:
    """A result with its official score and, once assigned, its leaderboard place."""

    score: ResultScore
    division: str
    system_name: str  #: name in the system description
    availability: str  #: cloud, on-premise, preview or research; "" if unknown
    accelerator: (
        str  #: name in the catalogue, else in the description; the processor if there is none
    )
    accelerators: int | None
    software: str  #: framework and stack, as the description states
    evaluations: float | None  #: mean over the scored runs
    counted_by: str  #: measure of convergence: metadata of evaluations, or a log key
    batch_size: int | None  #: global; None if the runs that reached the target differ
    mode: Mode
    verdict: RcpVerdict
    #: verdicts by the rules and by MLPerf's tool, of a published result with given references
    both: tuple[RcpVerdict, RcpVerdict] | None
    validity: Validity
    files: tuple[str, ...]  #: log file names, in the order of the runs
    trust: Trust = field(default_factory=Trust)  #: verification level of the judgement
    place: Place | None = None  #: assigned by `hybridperf.score.ranking.with_places`
    context: Context | None = None  #: assigned by `hybridperf.score.history.with_context`

    @property
    def own(self) -> bool:
        """Tell whether this harness produced the result; MLPerf submissions log no plan."""
        return bool(self.score.plan)

    @property
    def olympic_minutes(self) -> float | None:
        """Return the olympic mean in minutes; None if unknown or infinite."""
        mean_s = self.score.olympic_mean_s
        return mean_s / 60 if mean_s is not None and math.isfinite(mean_s) else None

    @property
    def minutes(self) -> float | None:
        """Return the official score in minutes; None if there is none, as `no_score` says."""
        factor, minutes = self.verdict.factor, self.olympic_minutes
        return None if self.no_score[0] or minutes is None or factor is None else minutes * factor

    @property
    def accelerator_minutes(self) -> float | None:
        """Return the official score times the number of accelerators; None if there is none."""
        return self.minutes * self.accelerators if self.minutes and self.accelerators else None

    @property
    def no_score(self) -> tuple[str, str]:
        """Return why there is no official score, in few words and in full; "" if there is one."""
        score, invalid = self.score, [run for run in self.score.window if run.invalid]
        judgement, why = self.validity.judgement, self.validity.why
        if judgement in _WITHOUT_TIME:
            return _WITHOUT_TIME[judgement], why
        if score.olympic_mean_s is None:
            return "too few runs", f"fewer than {fewest_runs(score.drops)} runs"
        if score.olympic_mean_s <= 0:
            return "impossible", "by its logs, it took no time"
        if math.isinf(score.olympic_mean_s) and invalid:
            logs = f"{len(invalid)} logs" if len(invalid) > 1 else "a log"
            return (
                "logs invalid",
                f"{logs} invalid by {self.validity.ruleset}: {invalid[0].invalid}",
            )
        if math.isinf(score.olympic_mean_s):
            return "target missed", too_many_missed(score.drops)
        if judgement is Judgement.MISSED:
            return "target missed", why
        if self.verdict.passed is False:
            return "RCP test failed", self.verdict.reason
        return ("RCP not tested", self.verdict.reason) if self.verdict.factor is None else ("", "")

    @property
    def both_words(self) -> str:
        """Return both verdicts on convergence in words; "" if there are none."""
        if self.both is None:
            return ""
        rules, tool = self.both
        return f"by the rules: {rules.words}; MLPerf's tool: {tool.words}"

    @property
    def idle_share(self) -> float | None:
        """Return the share of device time spent waiting for other devices; None if unknown."""
        parts = (self.score.bubble, self.score.exposed_communication)
        known = [part for part in parts if part is not None]
        return math.fsum(known) if known else None

    @property
    def dropped(self) -> list[dict[str, object]]:
        """Return the unscored runs, each with the reason."""
        return [
            {
                "run": run.number,
                "file": file,
                "time_s": run.time_to_train_s if math.isfinite(run.time_to_train_s) else None,
                "why": _why(run, self.score),
            }
            for run, file in zip(self.score.runs, self.files, strict=True)
            if not run.counts
        ]


def official_of(
    result: Result,
    validity: Validity,
    references: RcpSet | None = None,
    mode: Mode | None = None,
) -> Official:
    """Score ``result`` and test its convergence against reference convergence points (RCPs).

    ``validity`` is its judgement: a result that is not judged or not valid has no official score,
    and invalid logs count as runs that missed the target. ``references`` default to the points of
    the task. If both ``mode`` and ``references`` are None, a result of a published round
    takes its factor from that round.
    """
    score = score_result(result, validity)
    published = references is None and score.edition
    chosen: Mode = mode or ("published" if published else "rules")
    return official_score(result, score, validity, references, chosen)


def official_score(
    result: Result,
    score: ResultScore,
    validity: Validity,
    references: RcpSet | None,
    mode: Mode = "rules",
) -> Official:
    """Return the official score of ``result``, given its ``score``."""
    own = bool(score.plan)
    both = None
    if own and mode == "published":  # no round has published this suite's results
        mode = "rules"
    logs = [run.log for run in result.runs]
    key = count_key(logs, score.benchmark, score.edition)
    system = result.system or {}
    division = score.division if own else _division(system.get("division"))
    division = division or _division(score.division)
    scored = list(zip(score.runs, logs, strict=True))
    evaluations = [len(log.all(keys.EVAL_ACCURACY)) for run, log in scored if run.counts]
    reached = [log for run, log in scored if run.in_window and run.completion == "reached"]

    def convergence(by: Mode) -> RcpVerdict:
        return convergence_of(result, score, division, key, references, by)

    if score.edition and references is not None:
        both = convergence("rules"), convergence("compat")
    return Official(
        score=score,
        division=division,
        system_name=_text(system, "system_name"),
        availability=availability(system.get("status")),
        accelerator=_accelerator(system),
        accelerators=accelerator_count(result.system),
        software=software(system),
        evaluations=known_mean(evaluations),
        counted_by=key,
        batch_size=agreed_batch(reached),
        mode=mode,
        verdict=published_factor(result) if mode == "published" else convergence(mode),
        both=both,
        validity=validity,
        trust=validity.trust,
        files=tuple(log.path.rpartition("/")[2] for log in logs),
    )


def _division(stated: object) -> str:
    """Return ``closed`` or ``open`` if a description or log means that, else what it states."""
    if not isinstance(stated, str):
        return ""
    word = stated.strip(" /").casefold()
    return "closed" if word in {"close", "closed"} else "open" if word == "open" else stated


def _accelerator(system: Mapping[str, object]) -> str:
    stated = _text(system, "accelerator_model_name")
    if system.get("accelerators_per_node") in (0, "0") or not stated:
        return _text(system, "host_processor_model_name")
    known = find_accelerator(stated)
    return known.name if known else stated


def _text(system: Mapping[str, object], key: str) -> str:
    value = system.get(key)
    return value.strip()[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def _why(run: RunScore, score: ResultScore) -> str:
    if run.completion == "ended":
        return visible(f"not scored: {run.outcome}")
    if not run.in_window:
        return "not scored: outside the runs in a row whose olympic mean is the median"
    counting = [each.time_to_train_s for each in score.window if each.counts]
    if not counting:
        return f"not scored: fewer than {fewest_runs(score.drops)} runs"
    if run.completion == "missed":
        what = f"its log is invalid: {run.invalid}" if run.invalid else "did not reach the target"
        return f"slowest: {what}"
    return "fastest" if run.time_to_train_s <= min(counting) else "slowest"
