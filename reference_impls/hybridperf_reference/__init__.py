"""Reference implementations of the tasks; the harness runs them as it runs any submission."""
