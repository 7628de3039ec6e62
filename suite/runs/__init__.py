"""One timed training: launched, supervised, scored again and sealed; and `TimedRun`, the worker's side."""
