"""Regret of the planner's choice."""
