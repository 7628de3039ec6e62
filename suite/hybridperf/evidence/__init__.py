"""What stands beside a log: seeds, tensors, predictions, signatures, time stamps, re-runs."""
