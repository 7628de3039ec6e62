"""One timed training: launched, supervised, scored again and sealed; and the worker's side."""
