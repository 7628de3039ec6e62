"""Rules for MLPerf rounds, as applied by the official checker and as written."""
