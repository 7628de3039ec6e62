"""Trainers without torch, for tests."""
