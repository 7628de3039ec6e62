"""Parallel plans: how training is distributed over devices, their text form and constraints."""

from hybridperf.plan.constraints import TrainingConfig
from hybridperf.plan.plan import Chip, ParallelPlan, complete_plan, deviations_of, plan_chips
from hybridperf.plan.schedules import SCHEDULES

__all__ = [
    "SCHEDULES",
    "Chip",
    "ParallelPlan",
    "TrainingConfig",
    "complete_plan",
    "deviations_of",
    "plan_chips",
]
