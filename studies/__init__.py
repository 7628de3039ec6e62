"""Measurements that support a statement of the documentation; not installed."""
