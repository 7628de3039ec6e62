"""The parallel plan: how training is spread over devices, its text form, and what it must fit."""

from suite.plan.facts import ChainFacts
from suite.plan.plan import ParallelPlan, Schedule

__all__ = ["ChainFacts", "ParallelPlan", "Schedule"]
