"""What results mean: times with intervals, throughput, samples to target."""
