"""A model of one's own, trained under every plan: see docs/your_model.md."""
