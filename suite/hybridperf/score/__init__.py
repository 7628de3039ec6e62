"""Score results: time to train with intervals, throughput and samples to target."""
