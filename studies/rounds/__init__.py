"""Projections of the published rounds of MLPerf."""
