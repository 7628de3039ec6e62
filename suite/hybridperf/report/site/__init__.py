"""The site over rounds of MLPerf: a page for each round and benchmark, and a first one."""
