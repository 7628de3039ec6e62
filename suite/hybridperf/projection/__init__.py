"""Projected performance: step time, memory and traffic of a plan, from measured or stated costs."""
