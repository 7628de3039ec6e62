"""Answers on the clock by something else than the model that it hands over or saves."""
