"""Rules of rounds of MLPerf: as their official checker applied them, and as they are written."""
