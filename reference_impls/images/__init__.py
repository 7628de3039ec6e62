"""Images for the families that classify them: from stored samples to inputs."""
