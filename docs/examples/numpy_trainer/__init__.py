"""A trainer in another framework: see docs/your_framework.md."""
