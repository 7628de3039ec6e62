"""One timed training: launched, supervised, rescored and sealed; and the trainer's side."""
