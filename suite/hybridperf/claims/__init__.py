"""Published claims as data, and the checks that give a verdict on each."""
