"""Parallel plans: how training is distributed over devices, their text form and constraints."""

from hybridperf.plan.constraint import TrainingConfig
from hybridperf.plan.plan import ParallelPlan, deviations_of
from hybridperf.plan.schedules import SCHEDULES
from hybridperf.plan.text import Chip, complete_plan, plan_chips

__all__ = [
    "SCHEDULES",
    "Chip",
    "ParallelPlan",
    "TrainingConfig",
    "complete_plan",
    "deviations_of",
    "plan_chips",
]
